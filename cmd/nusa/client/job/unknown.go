package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// unknownOf returns the unknown instances of each group, sorted by group.
func unknownOf(s *nusav1.JobStatus) (out [][]*nusav1.UnknownInstances) {
	for _, name := range slices.Sorted(maps.Keys(s.GetGroups())) {
		out = append(out, s.GetGroups()[name].GetUnknown())
	}
	return out
}

// writeUnknown writes what is known about instances in regions that are cut off: the counts
// of the region's last report, and what happens next.
func writeUnknown(w *term.Screen, s *nusav1.JobStatus, groups []string) {
	t := term.NewTable("GROUP", ">INSTANCES", "REGION", ">SILENT", "LAST REPORT", "#WHAT FOLLOWS")
	for _, name := range groups {
		for _, u := range s.GetGroups()[name].GetUnknown() {
			last, silent := "", "-"
			if u.GetLast() != nil {
				last = jobstatus.LastText(u.GetLast())
			}
			if u.GetSilent() != nil {
				silent = jobstatus.Span(u.GetSilent().AsDuration())
			}
			t.Row(name, term.Count(u.GetCount()), u.GetRegion(), w.Wait(silent), last, cli.WithProgram(term.OneLine(u.GetMessage()), w.Program))
		}
	}
	if len(t.Rows) == 0 {
		return
	}
	t.DropEmpty("LAST REPORT")
	t.Narrow(w.Width, "LAST REPORT")
	fmt.Fprintln(w)
	t.Write(w)
}

// unknownText says which regions the job waits for and what happens next, for example "2
// unknown for 20s: tokyo is cut off, would move in 40s unless tokyo returns". It is "" if
// no instance is unknown.
func unknownText(s *nusav1.JobStatus) string {
	all := unknownOf(s)
	var parts []string
	for _, cut := range jobstatus.Cuts(false, all...) {
		text := jobstatus.UnknownText([]jobstatus.Cut{cut})
		if next := soonest(cut.Region, all); next != "" {
			text += ", " + next
		}
		parts = append(parts, text)
	}
	if n := len(parts) - cli.MaxNamed; n > 0 {
		parts = append(parts[:cli.MaxNamed], fmt.Sprintf("%d more regions", n))
	}
	return strings.Join(parts, "; ")
}

// soonest returns what happens to the instances of a region that move first.
func soonest(region string, all [][]*nusav1.UnknownInstances) string {
	var first *nusav1.UnknownInstances
	rank := func(u *nusav1.UnknownInstances) time.Duration {
		if u.GetMoveDue() == nil {
			return time.Duration(1<<63 - 1)
		}
		return u.GetMoveDue().AsDuration()
	}
	for _, list := range all {
		for _, u := range list {
			if u.GetRegion() == region && !u.GetFormer() && (first == nil || rank(u) < rank(first)) {
				first = u
			}
		}
	}
	return first.GetMessage()
}

// aged returns a job with the ages that its status has some time (passed) after the
// message. For example, cut-off regions are then silent for longer.
func aged(j *nusav1.Job, passed time.Duration) *nusav1.Job {
	if len(jobstatus.Cuts(false, unknownOf(j.GetStatus())...)) == 0 {
		return j
	}
	j = proto.CloneOf(j)
	for _, list := range unknownOf(j.GetStatus()) {
		for _, u := range list {
			if u.GetSilent() != nil {
				u.Silent = durationpb.New(u.GetSilent().AsDuration() + passed)
			}
			if due := u.GetMoveDue().AsDuration(); due > 0 {
				left := max(0, due-passed)
				u.MoveDue, u.Message = durationpb.New(left), jobstatus.Later(u.GetMessage(), u.GetRegion(), left)
			}
		}
	}
	return j
}

// ageless returns a job without the ages, which differ in each status.
func ageless(j *nusav1.Job) *nusav1.Job {
	j = proto.CloneOf(j)
	for _, list := range unknownOf(j.GetStatus()) {
		for _, u := range list {
			if u.GetSilent() != nil {
				u.Silent = durationpb.New(0)
			}
			if u.GetMoveDue() != nil {
				u.MoveDue, u.Message = nil, ""
			}
		}
	}
	return j
}

// unreachable says which instances a stop does not reach now. It is "" if the stop reaches
// all instances.
func unreachable(s *nusav1.JobStatus, program string) string {
	return cli.WithProgram(jobstatus.UnreachableText(jobstatus.Cuts(false, unknownOf(s)...)), program)
}

// joined joins the texts that are not empty.
func joined(separator string, texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), separator)
}
