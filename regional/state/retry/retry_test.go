package retry

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/golden"
)

// TestGoldens runs the scripts in testdata. "policy 5" and "rule exit=3,4 fail" describe a policy. Each
// other line is a failure, and the line after it, with "> ", is the decision.
func TestGoldens(t *testing.T) { golden.Scripts(t, "testdata/*.txt", 1, runScript) }

func runScript(t *testing.T, script string) string {
	p := &Policy{Default: Rule{Attempts: -1, From: 5 * time.Second, To: time.Minute}}
	var record *Record
	failures := int32(0)
	var out strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "> ") {
			continue
		}
		out.WriteString(line + "\n")
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] == "#":
		case f[0] == "policy":
			p.Attempts, p.Rules, record, failures = number(t, f[1]), nil, nil, 0
		case f[0] == "memory":
			p.MemoryBytes = int64(number(t, f[1])) << 20
		case f[0] == "instance":
			record, failures = nil, 0
		case f[0] == "rule":
			p.Rules = append(p.Rules, ruleOf(t, f[1:]))
		default:
			failures++
			var d Decision
			d, record = Decide(p, record, failureOf(t, f), failures)
			text := record.Text(true, d.Verdict != Again, failures)
			if d.Verdict == Again {
				text += fmt.Sprintf(" in %s", d.Wait)
			}
			fmt.Fprintf(&out, "> %s: %s\n", [...]string{"again", "exhausted", "by rule", "useless"}[d.Verdict], text)
		}
	}
	return out.String()
}

func number(t *testing.T, s string) int32 {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return int32(n)
}

func ruleOf(t *testing.T, words []string) Rule {
	r := Rule{Attempts: -1, From: 5 * time.Second, To: time.Minute}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		for v := range strings.SplitSeq(value, ",") {
			switch key {
			case "exit":
				r.ExitCodes = append(r.ExitCodes, number(t, v))
			case "signal":
				r.Signals = append(r.Signals, number(t, v))
			case "category":
				r.Categories = append(r.Categories, Category(v))
			case "attempts":
				r.Attempts = number(t, v)
			case "memory":
				r.MemoryMilli = int64(number(t, v))
			case "limit":
				r.MemoryLimit = int64(number(t, v)) << 20
			case "from":
				r.From = time.Duration(number(t, v)) * time.Second
			case "fail":
				r.Fail = true
			default:
				t.Fatalf("word %q", w)
			}
		}
	}
	return r
}

// failureOf reads a failure such as "app exit=3" or "config permanent".
func failureOf(t *testing.T, words []string) Failure {
	f := Failure{Category: Category(words[0])}
	for _, w := range words[1:] {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "exit":
			f.ExitCode = number(t, value)
		case "signal":
			f.Signal = number(t, value)
		case "permanent":
			f.Permanent = true
		default:
			t.Fatalf("word %q", w)
		}
	}
	return f
}

func TestBackoff(t *testing.T) {
	for n, want := range []time.Duration{1: 5, 2: 10, 3: 20, 4: 40, 5: 60, 6: 60, 40: 60} {
		if want > 0 {
			if got := Backoff(5*time.Second, time.Minute, int32(n)); got != want*time.Second {
				t.Errorf("after %d failures %s, want %ds", n, got, want)
			}
		}
	}
	if got := Backoff(0, 0, 3); got != 0 {
		t.Errorf("without a back-off %s", got)
	}
}

// TestTheRecordIsNotShared: a decision changes no earlier record, because snapshots of the state
// share it.
func TestTheRecordIsNotShared(t *testing.T) {
	p := &Policy{Attempts: 9, Rules: []Rule{{Attempts: -1}}}
	_, first := Decide(p, nil, Failure{Category: App}, 1)
	if Decide(p, first, Failure{Category: App}, 2); first.ByRule[0] != 1 {
		t.Errorf("the first record counts %d retries", first.ByRule[0])
	}
}
