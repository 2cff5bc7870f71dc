package jobstatus

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Owned is the part of a group that is owned by a region that is cut off.
type Owned struct {
	// Wanted counts the instances that should run in the region. Unwanted counts those
	// that the region has to stop.
	Wanted, Unwanted int32
	// Batch: the job is a batch job, so instances that have ended stay ended. System: the
	// job is a system job, so only the region knows how many instances it has.
	Batch, System bool
	// Last holds the counts that the region reported last; nil = none.
	Last *nusav1.InstanceCounts
}

// Split returns the counts that are still certain although the region is cut off, and how
// many of the wanted and of the unwanted instances are unknown.
func (o Owned) Split() (known *nusav1.InstanceCounts, wanted, unwanted int32) {
	known = &nusav1.InstanceCounts{}
	if o.Batch {
		known.Complete = min(o.Last.GetComplete(), o.Wanted)
		known.Failed = min(o.Last.GetFailed(), o.Wanted-known.Complete)
	}
	wanted = o.Wanted - known.Complete - known.Failed
	switch {
	case o.System && o.Wanted > 0:
		return known, max(1, counts.Live(o.Last)), 0
	case o.Unwanted == 0:
	case o.Last == nil:
		unwanted = o.Unwanted
	case o.System:
		unwanted = Remaining(o.Last)
	case o.Wanted == 0:
		unwanted = min(o.Unwanted, Remaining(o.Last))
	default:
		unwanted = max(0, min(o.Unwanted, counts.Live(o.Last)-o.Wanted))
	}
	return known, wanted, unwanted
}

// Remaining counts the instances that a region still has to stop if it must run none.
func Remaining(c *nusav1.InstanceCounts) int32 { return c.GetStarting() + c.GetRunning() + c.GetLost() }

// Outlook says what happens to the instances of a region that is cut off.
type Outlook struct {
	// Moves: the instances move to other regions after Due, unless the region returns
	// before. With a Due of 0 they move now. Why is the reason for that time, or the
	// reason why they do not move.
	Moves bool
	Due   time.Duration
	// To names the regions to which the instances would move; "" = unknown.
	To  string
	Why string
}

// Text returns the outlook of a region's instances as one line.
func (o Outlook) Text(region string) string {
	switch {
	case !o.Moves:
		return o.Why
	case o.Due > 0:
		unless := fmt.Sprintf("unless %s returns", region)
		_, because, _ := strings.Cut(o.Why, unless)
		to := ""
		if o.To != "" {
			to = " to " + o.To
		}
		return fmt.Sprintf("would move%s in %s %s%s", to, Span(o.Due), unless, because)
	}
	return cmp.Or(o.Why, "due to move, unless "+region+" returns first")
}

// inSpan matches the beginning of an outlook's text up to the word after the time.
var inSpan = lazyregexp.New(`^(would move.*? in )\S+( unless )`)

// Later returns the text of an earlier outlook with a new time: due is the time that is
// left.
func Later(text, region string, due time.Duration) string {
	if due <= 0 {
		return Outlook{Moves: true}.Text(region)
	}
	return inSpan().ReplaceAllString(text, "${1}"+Span(due)+"${2}")
}

// WhenItReturns says when n instances stop that a cut-off region has to stop.
func WhenItReturns(region string, n int32) string {
	if n == 1 {
		return fmt.Sprintf("it stops when %s returns, or `nusa region lose %s` if the region is gone for good", region, region)
	}
	return fmt.Sprintf("they stop when it returns, or `nusa region lose %s` if it is gone for good", region)
}

// Cut counts the unknown instances of one region that is cut off. Silent is how long the
// region has been cut off. Former: the region was their owner, and is no longer.
type Cut struct {
	Region string
	Count  int32
	Silent time.Duration
	Former bool
}

// Cuts adds up unknown instances by region. If former is true, it counts the instances
// that regions may still run as former owners, otherwise those that regions own.
func Cuts(former bool, all ...[]*nusav1.UnknownInstances) (out []Cut) {
	for _, list := range all {
		for _, u := range list {
			if u.GetFormer() != former || u.GetSilent() == nil {
				continue
			}
			i := slices.IndexFunc(out, func(c Cut) bool { return c.Region == u.GetRegion() })
			if i < 0 {
				i = len(out)
				out = append(out, Cut{Region: u.GetRegion(), Former: former})
			}
			out[i].Count += u.GetCount()
			out[i].Silent = max(out[i].Silent, u.GetSilent().AsDuration())
		}
	}
	slices.SortFunc(out, func(a, b Cut) int { return cmp.Compare(a.Region, b.Region) })
	return out
}

// maxNamed bounds the regions that a line about unknown instances names.
const maxNamed = 3

// UnknownText says how many instances are unknown, for how long and why, for example "2
// unknown for 20s: tokyo is cut off". It returns "" if there are none.
func UnknownText(all []Cut) string {
	return join(all, func(c Cut) string {
		if c.Former {
			return fmt.Sprintf("%d may still run at %s, cut off for %s", c.Count, c.Region, Span(c.Silent))
		}
		return fmt.Sprintf("%d unknown for %s: %s is cut off", c.Count, Span(c.Silent), c.Region)
	})
}

// UnreachableText says how many instances cannot be stopped now, where and why. It returns
// "" if there are none.
func UnreachableText(all []Cut) string {
	return join(all, func(c Cut) string {
		return fmt.Sprintf("%d cannot be reached: %s has been cut off for %s; %s", c.Count, c.Region, Span(c.Silent), WhenItReturns(c.Region, c.Count))
	})
}

func join(all []Cut, text func(Cut) string) string {
	var parts []string
	left := int32(0)
	for i, c := range all {
		if i < maxNamed {
			parts = append(parts, text(c))
			continue
		}
		left += c.Count
	}
	if n := len(all) - maxNamed; n > 0 {
		parts = append(parts, fmt.Sprintf("%d in %d more regions", left, n))
	}
	return strings.Join(parts, "; ")
}

// Span formats a duration with at most two units, for example 20s, 4m10s, 3h5m or 2d4h.
func Span(d time.Duration) string {
	if d < time.Hour {
		d = d.Round(time.Second)
	}
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(0, d/time.Second))
	case d < time.Hour:
		return parts(d, time.Minute, "m", time.Second, "s")
	case d < day:
		return parts(d, time.Hour, "h", time.Minute, "m")
	}
	return parts(d, day, "d", time.Hour, "h")
}

func parts(d, unit time.Duration, name string, part time.Duration, partName string) string {
	out := fmt.Sprintf("%d%s", d/unit, name)
	if rest := d % unit / part; rest > 0 {
		out += fmt.Sprintf("%d%s", rest, partName)
	}
	return out
}

// LastText lists the counts that a region reported last, for example "2 running, 1
// starting".
func LastText(c *nusav1.InstanceCounts) string {
	var out []string
	for _, p := range []struct {
		n    int32
		what string
	}{
		{c.GetRunning(), "running"}, {c.GetStarting(), "starting"}, {c.GetPending(), "pending"}, {c.GetComplete(), "complete"},
		{c.GetFailed(), "failed"}, {c.GetLost(), "lost"},
	} {
		if p.n > 0 {
			out = append(out, fmt.Sprintf("%d %s", p.n, p.what))
		}
	}
	if len(out) == 0 {
		return "nothing reported"
	}
	return strings.Join(out, ", ")
}
