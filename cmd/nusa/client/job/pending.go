package job

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// pending says why instances wait, for example "3 regions: no node fits; 2 unknown for 20s:
// tokyo is cut off".
func pending(j *nusav1.Job) string {
	s := j.GetStatus()
	type kind struct{ text, what string }
	counts := map[kind]int32{}
	var order []kind
	for _, name := range slices.Sorted(maps.Keys(s.GetGroups())) {
		for _, p := range s.GetGroups()[name].GetPending() {
			text := reason.Text(p.GetReason())
			switch {
			case p.GetMessage() == "":
			case p.GetReason() == nusav1.Reason_REASON_BACKOFF:
				text = term.OneLine(p.GetMessage()) // the latest failure
			case p.GetReason() == nusav1.Reason_REASON_NOT_HEALTHY_YET:
				text = term.Why(p.GetReason(), p.GetMessage())
			case missingDriver(p, j.GetSpec().GetGroups()[name]) != "":
				text = "no node has the driver " + missingDriver(p, j.GetSpec().GetGroups()[name])
			}
			k := kind{text, cmp.Or(p.GetWhat(), "instance")}
			if counts[k] == 0 {
				order = append(order, k)
			}
			counts[k] += p.GetCount()
		}
	}
	var parts []string
	for _, k := range order {
		parts = append(parts, fmt.Sprintf("%s: %s", term.Plural(counts[k], k.what), k.text))
	}
	return joined("; ", append(parts, unknownText(s))...)
}

// missingDriver returns the driver that the instances of a group wait for because no node
// has it. It returns "" if the instances wait for something else, or if the group needs
// several drivers.
func missingDriver(p *nusav1.CountedReason, group *nusav1.Group) string {
	if p.GetReason() != nusav1.Reason_REASON_DRIVER_MISSING {
		return ""
	}
	drivers := map[string]bool{}
	for _, t := range group.GetTasks() {
		drivers[t.GetDriver()] = true
	}
	if len(drivers) != 1 {
		return ""
	}
	return slices.Collect(maps.Keys(drivers))[0]
}

// driverOfNoRegion returns a driver that an unplaced group needs and that no region has. It
// returns "" if a group may be placed without a further agent.
func driverOfNoRegion(j *nusav1.Job) string {
	name := ""
	for group, g := range j.GetStatus().GetGroups() {
		if len(g.GetPending()) == 0 || g.GetUnowned() == 0 {
			continue
		}
		for _, p := range g.GetPending() {
			name = missingDriver(p, j.GetSpec().GetGroups()[group])
			if name == "" {
				return ""
			}
		}
	}
	return name
}

// retriesFailures reports whether failed instances wait for their next attempt.
func retriesFailures(s *nusav1.JobStatus) bool {
	for _, g := range s.GetGroups() {
		for _, p := range g.GetPending() {
			if p.GetReason() == nusav1.Reason_REASON_BACKOFF {
				return true
			}
		}
	}
	return false
}
