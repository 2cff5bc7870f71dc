package failover

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/golden"
)

// TestScripts runs testdata/*.txt. A script is a list of blocks: commands, then "----",
// then the plan up to an empty line. Commands:
//
//	server [lease=DUR] [max=DUR] [active=DUR] [calm=DUR] [others=N] [resigned=yes|no] [earlier=ALARM] [unconfirmed=REGION,...]
//	region NAME [silent=DUR] [connected] [never] [lost] [back] [nothing] [former=N]   (again = changes it)
//	regions N          (r1 … rN, connected)
//	slot REGION JOB/GROUP FROM-TO [after=DUR] [keep] [stop] [replace=no] [bound=DUR (BoundFor)] [unbound=yes|no]
//	     [set=NAME] [done] [system] [stopping]           (again = changes it)
//	wait DUR           (all silences and times go on)
//	decide
func TestScripts(t *testing.T) {
	golden.Scripts(t, "testdata/*.txt", 4, playScript)
}

func playScript(t *testing.T, text string) string {
	w := &Snapshot{Lease: 15 * time.Second, LeaseMax: 15 * time.Second, Active: time.Hour, Calm: time.Hour}
	var out, printed strings.Builder
	skipping := false
	for _, line := range strings.SplitAfter(text, "\n") {
		bare := strings.TrimSpace(line)
		switch {
		case skipping:
			if bare == "" {
				skipping = false
				out.WriteString(line)
			}
		case bare == "----":
			out.WriteString(line + printed.String())
			printed.Reset()
			skipping = true
		default:
			out.WriteString(line)
			if bare == "" || strings.HasPrefix(bare, "#") {
				continue
			}
			if bare == "decide" {
				printed.WriteString(Decide(*w).String())
			} else if err := w.play(strings.Fields(bare)); err != nil {
				t.Fatalf("%s: %v", bare, err)
			}
		}
	}
	return out.String()
}

func (s *Snapshot) play(words []string) error {
	switch words[0] {
	case "server":
		return s.server(words[1:])
	case "region":
		return s.find(words[1]).change(words[2:])
	case "regions":
		n, err := strconv.Atoi(words[1])
		for i := range n {
			s.find(fmt.Sprintf("r%d", i+1))
		}
		return err
	case "slot":
		return s.find(words[1]).slot(words[2:])
	case "wait":
		d, err := time.ParseDuration(words[1])
		s.Active += d
		s.Calm += d
		for i := range s.Regions {
			if r := &s.Regions[i]; !r.Connected {
				r.Silent += d
				for k := range r.Slots {
					r.Slots[k].BoundFor -= d
				}
			}
		}
		return err
	}
	return fmt.Errorf("unknown command")
}

func (s *Snapshot) server(args []string) error {
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		d, _ := time.ParseDuration(value)
		switch key {
		case "lease":
			s.Lease, s.LeaseMax = d, max(d, s.LeaseMax)
		case "max":
			s.LeaseMax = d
		case "active":
			s.Active = d
		case "calm":
			s.Calm = d
		case "others":
			s.OtherServers, _ = strconv.Atoi(value)
		case "resigned":
			s.Resigned = value == "yes"
		case "earlier":
			s.Earlier = value
		case "unconfirmed":
			s.Unconfirmed = strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
		default:
			return fmt.Errorf("unknown word %q", a)
		}
	}
	return nil
}

func (s *Snapshot) find(name string) *Region {
	i := slices.IndexFunc(s.Regions, func(r Region) bool { return r.Name == name })
	if i < 0 {
		s.Regions = append(s.Regions, Region{Name: name, Connected: true})
		slices.SortFunc(s.Regions, func(a, b Region) int { return cmp.Compare(a.Name, b.Name) })
		return s.find(name)
	}
	return &s.Regions[i]
}

func (r *Region) change(args []string) error {
	for _, a := range args {
		key, value, _ := strings.Cut(a, "=")
		d, _ := time.ParseDuration(value)
		switch key {
		case "silent":
			r.Silent, r.Connected = d, false
		case "connected":
			r.Connected = true
		case "never":
			r.NeverConnected, r.Connected = true, false
		case "lost":
			r.Lost, r.Connected = true, false
		case "back":
			r.Connected, r.Lost, r.NothingRuns, r.Silent = true, false, false, 0
		case "former":
			r.Former, _ = strconv.Atoi(value)
		case "nothing":
			r.Lost, r.NothingRuns, r.Connected = true, true, false
		default:
			return fmt.Errorf("unknown word %q", a)
		}
	}
	return nil
}

func (r *Region) slot(args []string) error {
	job, group, _ := strings.Cut(args[0], "/")
	first, last, ranged := strings.Cut(args[1], "-")
	from, _ := strconv.Atoi(first)
	to := from + 1
	if ranged {
		to, _ = strconv.Atoi(last)
		to++
	}
	same := func(s Slot) bool { return s.Job == job && s.Group == group && s.From == from }
	i := slices.IndexFunc(r.Slots, same)
	if i < 0 {
		i = len(r.Slots)
		r.Slots = append(r.Slots, Slot{Namespace: "default", Job: job, Group: group, From: from, To: to, Generation: 1, After: time.Minute, Replace: true, Unbound: true})
	}
	s := &r.Slots[i]
	for _, a := range args[2:] {
		key, value, _ := strings.Cut(a, "=")
		d, _ := time.ParseDuration(value)
		switch key {
		case "after":
			s.After = d
		case "keep":
			s.Stop = false
		case "stop":
			s.Stop, s.Bound, s.Unbound = true, true, false
		case "replace":
			s.Replace = value != "no"
		case "bound":
			s.Bound, s.BoundFor = true, d
		case "unbound":
			s.Unbound = value == "yes"
		case "set":
			s.Set = value
		case "done":
			s.Done = true
		case "system":
			s.System = true
		case "stopping":
			s.Stopping = true
		default:
			return fmt.Errorf("unknown word %q", a)
		}
	}
	return nil
}
