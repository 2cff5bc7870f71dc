package job

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// pending is why instances wait: "3 regions: no node fits; 1 region: it is not
// connected".
func pending(s *nusav1.JobStatus) string {
	type kind struct{ text, what string }
	counts := map[kind]int32{}
	var order []kind
	for _, name := range slices.Sorted(maps.Keys(s.GetGroups())) {
		for _, p := range s.GetGroups()[name].GetPending() {
			text := reason.Text(p.GetReason())
			switch {
			case p.GetMessage() == "":
			case p.GetReason() == nusav1.Reason_REASON_BACKOFF:
				text = term.Plain(p.GetMessage()) // what failed last
			case p.GetReason() == nusav1.Reason_REASON_NOT_HEALTHY_YET:
				text = term.Why(p.GetReason(), p.GetMessage())
			case missingDriver(p) != "":
				text = "no node has the driver " + missingDriver(p)
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
	return strings.Join(parts, "; ")
}

// driverPattern finds the driver that nodes do not have, in their words.
var driverPattern = regexp.MustCompile(`has no driver ([a-z0-9-]+)`)

// missingDriver is the driver for want of which instances wait, "" when it is
// something else.
func missingDriver(p *nusav1.CountedReason) string {
	m := driverPattern.FindStringSubmatch(p.GetMessage())
	if p.GetReason() != nusav1.Reason_REASON_DRIVER_MISSING || m == nil {
		return ""
	}
	return m[1]
}

// driverOfNoRegion is the driver that no region has for a job of which nothing is
// placed, "" when there is hope without another agent.
func driverOfNoRegion(s *nusav1.JobStatus) string {
	name := ""
	for _, g := range s.GetGroups() {
		if len(g.GetPending()) == 0 || g.GetUnowned() == 0 {
			continue
		}
		for _, p := range g.GetPending() {
			if name = missingDriver(p); name == "" {
				return ""
			}
		}
	}
	return name
}

// retriesFailures says that instances are tried again after they failed.
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
