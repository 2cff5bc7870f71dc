package health

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/nusa-scheduler/nusa/internal/golden"
)

// TestGoldens runs the scripts in testdata. A line is the result of a check. The
// lines after it, with "> ", are the effects. The time advances to the next check.
func TestGoldens(t *testing.T) { golden.Scripts(t, "testdata/*.txt", 1, runScript) }

var epoch = time.Unix(0, 0).UTC()

type script struct {
	t   *testing.T
	p   Policy
	s   State
	now time.Time
	due time.Time
}

func runScript(t *testing.T, text string) string {
	w := &script{t: t, now: epoch, p: Policy{What: "tcp :80", Interval: 10 * time.Second, Timeout: 2 * time.Second, Deadline: time.Minute, Failures: 3}}
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "> ") {
			continue
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		out.WriteString(w.line(strings.Fields(line)))
	}
	return out.String()
}

func (w *script) duration(s string) time.Duration {
	w.t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// line runs one line of a script: "policy interval=10s …", "begin", "resume healthy
// random=0.5", "pass words…", "fail words…", "late 12s fail words…" or "overslept 3s fail
// words…". times=N repeats a result.
func (w *script) line(f []string) string {
	switch f[0] {
	case "policy":
		for _, a := range f[1:] {
			k, v, _ := strings.Cut(a, "=")
			switch k {
			case "interval":
				w.p.Interval = w.duration(v)
			case "deadline":
				w.p.Deadline = w.duration(v)
			case "failures":
				w.p.Failures, _ = strconv.Atoi(v)
			default:
				w.t.Fatalf("policy %s", k)
			}
		}
		return ""
	case "begin":
		w.s, w.due = Begin(w.now), w.now
		return ""
	case "after":
		w.now = w.now.Add(w.duration(f[1]))
		return ""
	case "resume":
		phase := map[string]Phase{"waiting": Waiting, "healthy": Healthy}[f[1]]
		first := time.Duration(0)
		w.s, first = Resume(w.p, phase, epoch, w.now, 0.5)
		w.due = w.now.Add(first)
		return fmt.Sprintf("> %s, first check in %s\n", w.s.Phase, first)
	}
	var r Result
	times := 1
	for {
		switch f[0] {
		case "late":
			r.Late = w.duration(f[1])
		case "overslept":
			r.Overslept = w.duration(f[1])
		case "times":
			times, _ = strconv.Atoi(f[1])
		case "pass", "fail":
			r.OK, r.Message = f[0] == "pass", strings.Join(f[1:], " ")
			out := ""
			for range times {
				out += w.result(r)
			}
			return out
		default:
			w.t.Fatalf("unknown word %q", f[0])
		}
		f = f[2:]
	}
}

func (w *script) result(r Result) string {
	if w.due.After(w.now) {
		w.now = w.due
	}
	r.Began = w.now
	before := w.s.Phase
	s, e := Step(w.p, w.s, r, w.now, 0.5)
	w.s, w.due = s, w.now.Add(e.Next)
	out := fmt.Sprintf("> at %s %s", w.now.Sub(epoch).Round(time.Millisecond), s.Phase)
	if s.Failed > 0 {
		out += fmt.Sprintf(", %d failed", s.Failed)
	}
	if Late(w.p, r) {
		out += ", late"
	}
	if e.Report {
		out += ", report " + s.Describe(w.p)
	}
	if e.Changed && s.Phase == Unhealthy {
		out += "\n> it " + UnhealthyReason(w.p, before, s)
	}
	if e.Next > 0 {
		out += "; again in " + e.Next.Round(time.Millisecond).String()
	}
	return out + "\n"
}

// TestPhaseFollowsCountedResults compares every step of random histories with a second
// implementation of the rules, which only counts results.
func TestPhaseFollowsCountedResults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := Policy{What: "x", Interval: time.Duration(rapid.IntRange(1000, 20_000).Draw(rt, "interval")) * time.Millisecond,
			Timeout: time.Second, Deadline: time.Duration(rapid.IntRange(1, 60).Draw(rt, "deadline")) * time.Second,
			Failures: rapid.IntRange(1, 4).Draw(rt, "failures")}
		now := epoch
		s, begun, passed, row, reports := Begin(now), now, false, 0, 0
		for range rapid.IntRange(1, 80).Draw(rt, "results") {
			r := Result{Began: now, OK: rapid.Bool().Draw(rt, "ok"), Message: rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "message"),
				Overslept: time.Duration(rapid.SampledFrom([]int{0, 0, 0, 5}).Draw(rt, "overslept")) * time.Second}
			was := s.Phase
			var e Effect
			s, e = Step(p, s, r, now, rapid.Float64Range(0, 1).Draw(rt, "random"))
			missed := !r.OK && r.Overslept > 0
			switch {
			case r.OK:
				passed, row = true, 0
			case !missed:
				row++
			}
			want := Waiting
			switch {
			case was == Unhealthy:
				rt.Fatal("checked after its end")
			case passed && row >= p.Failures, !passed && !missed && now.Sub(begun) >= p.Deadline:
				want = Unhealthy
			case passed:
				want = Healthy
			}
			if s.Phase != want || e.Changed != (was != want) || e.Changed && !e.Report {
				rt.Fatalf("%+v gave %s after %s, want %s: %+v", r, s.Phase, was, want, e)
			}
			if e.Report && !e.Changed {
				reports++
			}
			if s.Phase == Unhealthy {
				if e.Next != 0 {
					rt.Fatalf("checked again after the end: %+v", e)
				}
				break
			}
			if e.Next < minPause*9/10 || e.Next > p.Interval*11/10 || s.Phase == Healthy && e.Next < p.Interval*9/10 {
				rt.Fatalf("next in %s, the interval is %s", e.Next, p.Interval)
			}
			if s.Phase == Waiting && now.Before(begun.Add(p.Deadline)) && now.Add(e.Next).After(begun.Add(p.Deadline+minPause)) {
				rt.Fatalf("at %s the next check comes in %s, after the deadline", now.Sub(begun), e.Next)
			}
			now = now.Add(e.Next)
		}
		if most := int(now.Sub(begun)/reportEvery) + 1; reports > most {
			rt.Fatalf("reported %d times in %s", reports, now.Sub(begun))
		}
	})
}

// TestMessageIsPrintableAndBounded: Clean returns one printable line of at most
// MaxMessage bytes for every input.
func TestMessageIsPrintableAndBounded(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		" status 503:\r\n\tno  database\n": "status 503: no database",
		"a\x1b[31mred\x00\xff":             "a [31mred",
		"日本\u202eevil":                     "日本 evil",
		strings.Repeat("é", 200):           strings.Repeat("é", 126) + "…",
		strings.Repeat("\n", 5000):         "",
	} {
		if got := Clean(in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		got := Clean(string(rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(rt, "bytes")) + rapid.String().Draw(rt, "text"))
		if len(got) > MaxMessage || !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) || Clean(got) != got {
			rt.Fatalf("%q", got)
		}
	})
}
