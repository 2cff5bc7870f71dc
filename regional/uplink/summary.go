package uplink

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/nusa-scheduler/nusa/internal/reason"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// Summary returns the region's part of a job. It is nil when the region has no part of the
// job.
func (r *Reporter) Summary(view *state.View, k state.JobKey) *nusav1.JobSummary {
	out := &nusav1.JobSummary{
		Namespace: k.Namespace, Job: k.Job, Local: k.Local,
		Groups: map[string]*nusav1.InstanceCounts{}, Reasons: map[string]*nusav1.GroupReasons{},
		Incarnation: r.Incarnation, Index: view.Index(),
	}
	out.Version, out.Run = wantedVersion(view, k)
	for g := range view.JobGroups(k) {
		if n := newer(view, g, out.Version); n != nil {
			if out.Newer == nil {
				out.Newer = map[string]*nusav1.NewerInstances{}
			}
			out.Newer[g.Key.Group] = n
		}
		if used := usedAttempts(view, g, out.Version); len(used) > 0 {
			if out.Attempts == nil {
				out.Attempts = map[string]*nusav1.GroupAttempts{}
			}
			out.Attempts[g.Key.Group] = &nusav1.GroupAttempts{Instances: used}
		}
		if n := inPlace(view, g, out.Version); n > 0 {
			if out.InPlace == nil {
				out.InPlace = map[string]int32{}
			}
			out.InPlace[g.Key.Group] = n
		}
		out.Groups[g.Key.Group] = wire.InstanceCountsToProto(g.Counts)
		if counts := r.Reasons(view, g); len(counts) > 0 {
			out.Reasons[g.Key.Group] = &nusav1.GroupReasons{Reasons: counts}
		}
		out.Disconnected = append(out.Disconnected, disconnectedToProto(g.Key.Group, r.disconnected(view, g.Key))...)
	}
	out.Disconnected = out.Disconnected[:min(len(out.Disconnected), maxDisconnected)]
	if len(out.Groups) == 0 {
		return nil
	}
	if o, ok := view.Override(k.Namespace, k.Job); ok && !k.Local {
		out.Override = wire.OverrideToProto(o, view.Cluster().Region, view.Held(k))
	}
	return out
}

// wantedVersion returns the oldest job version and the oldest run that slots of this region
// want. Both are -1 when no slot wants any. Done slots count only when all slots are done.
// The version is then the newest version of the done slots.
func wantedVersion(view *state.View, k state.JobKey) (version, run int64) {
	open, done, run := int64(-1), int64(-1), int64(-1)
	for g := range view.JobGroups(k) {
		for _, s := range g.Slots {
			if s.Desired != state.Run {
				continue
			}
			if run < 0 || s.Run < run {
				run = s.Run
			}
			switch {
			case s.State == state.SlotDone:
				done = max(done, s.JobVersion)
			case open < 0 || s.JobVersion < open:
				open = s.JobVersion
			}
		}
	}
	if open < 0 {
		open = done
	}
	return open, run
}

// usedAttempts returns what the instances of a version have used of the retry policy of their group.
func usedAttempts(view *state.View, g *state.GroupView, version int64) (out []*nusav1.InstanceAttempts) {
	job, ok := view.Job(g.Key.JobKey(), version)
	if !ok || g.Key.Local || job.Group(g.Key.Group) == nil || job.Group(g.Key.Group).Retry == nil {
		return nil
	}
	for _, s := range g.Slots {
		if s.Desired == state.Run && s.JobVersion == version {
			out = append(out, wire.AttemptsToProto(view, s, s.From, s.To)...)
		}
	}
	return wire.MostFailures(out, wire.MaxAttempts)
}

// maxNewer bounds the instances that newer counts.
const maxNewer = 256

// newer counts the instances in the slots of a group that have its newest version. It returns nil if
// that is not after oldest, the version of the summary, or if there are more than maxNewer instances.
// The counts of a summary do not tell canaries from the instances of an earlier version.
func newer(view *state.View, g *state.GroupView, oldest int64) *nusav1.NewerInstances {
	version, n := int64(0), int32(0)
	for _, s := range g.Slots {
		if s.Desired != state.Run || s.JobVersion < version || s.JobVersion <= oldest {
			continue
		}
		if s.JobVersion > version {
			version, n = s.JobVersion, 0
		}
		n += s.To - s.From
	}
	if n == 0 || n > maxNewer {
		return nil
	}
	out := &nusav1.NewerInstances{Version: version}
	for _, s := range g.Slots {
		if s.Desired != state.Run || s.JobVersion != version {
			continue
		}
		for index := s.From; index < s.To; index++ {
			running, starting := false, false
			for a := range view.InstanceAllocs(g.Key, index) {
				if a.Live() && a.Desired == state.Run && a.JobVersion == version && !a.Disconnected {
					running = running || a.Serving()
					starting = starting || a.State == state.Starting || a.State == state.Running
				}
			}
			switch {
			case running:
				out.Running++
			case starting:
				out.Starting++
			}
		}
	}
	return out
}

// maxInPlace bounds the attempts of a group that inPlace looks at.
const maxInPlace = 4096

// inPlace counts the instances of a group that got their present resources while they ran, if they run the
// version. A first version changes nothing, and batch jobs are never changed.
func inPlace(view *state.View, g *state.GroupView, version int64) (n int32) {
	job, ok := view.Job(g.Key.JobKey(), version)
	if version <= 1 || !ok || job.Type == state.Batch {
		return 0
	}
	seen := 0
	for a := range view.AllocsIn(g) {
		if seen++; seen > maxInPlace {
			break
		}
		if a.Resized && a.Limits == state.LimitsApplied && a.JobVersion == version && a.Live() && a.Desired == state.Run {
			n++
		}
	}
	return n
}

// Reasons returns why instances of a group are pending, are still starting, or have failed.
func (r *Reporter) Reasons(view *state.View, g *state.GroupView) []*nusav1.CountedReason {
	out := append(r.Disconnected(view, g.Key), wire.CountedReasonsToProto(r.Plan.Reasons(g.Key))...)
	out = append(out, waiting(view, g)...)
	backoff := slices.IndexFunc(out, func(c *nusav1.CountedReason) bool { return c.GetReason() == nusav1.Reason_REASON_BACKOFF })
	if backoff >= 0 {
		out[backoff].Message = ""
	}
	if backoff < 0 && g.Counts.Failed == 0 {
		return out
	}
	failed := map[state.Reason]*nusav1.CountedReason{}
	var last *state.Instance // the instance that is retried last
	for i := range view.Instances(g.Key) {
		if !i.Exhausted {
			if i.NotBeforeUnixNano > 0 && i.Reason != "" && (last == nil || i.NotBeforeUnixNano > last.NotBeforeUnixNano) {
				last = i
			}
			continue
		}
		if c := failed[i.Reason]; c != nil {
			c.Count++
			continue
		}
		failed[i.Reason] = &nusav1.CountedReason{Reason: wire.ReasonToProto(i.Reason), Count: 1, Message: failureText(i), What: "instance"}
	}
	if backoff >= 0 && last != nil {
		out[backoff].Message = "last failure: " + cmp.Or(last.Message, reason.Text(wire.ReasonToProto(last.Reason)))
		if text := wire.RetryText(view, g.Key, last); text != "" {
			out[backoff].Message += "; " + text
		}
	}
	for _, r := range slices.Sorted(maps.Keys(failed)) {
		out = append(out, failed[r])
	}
	return out
}

// failureText says why an instance has no attempts left. It names the rule that decided.
func failureText(i *state.Instance) string {
	if i.Retry == nil || i.Retry.Rule == 0 {
		return i.Message
	}
	return fmt.Sprintf("%s (retry.rules[%d])", i.Message, i.Retry.Rule-1)
}

// awaited lists the reasons for which an instance waits on the node that it already has.
var awaited = []state.Reason{state.ReasonNotHealthyYet, state.ReasonLeaseExpired, state.ReasonRegionLease}

// waiting counts the instances that wait on their nodes for a health check or for a lease.
// Each count has the message of one of these instances.
func waiting(view *state.View, g *state.GroupView) []*nusav1.CountedReason {
	if g.Counts.Starting == 0 && g.Counts.Pending <= g.Unplaced {
		return nil
	}
	counts := make([]*nusav1.CountedReason, len(awaited))
	for a := range view.GroupAllocs(g.Key) {
		i := slices.Index(awaited, a.Reason)
		if i < 0 || !a.Live() || a.Disconnected || a.Desired != state.Run {
			continue
		}
		if counts[i] == nil {
			counts[i] = &nusav1.CountedReason{Reason: wire.ReasonToProto(a.Reason), What: "instance", Message: a.Message}
		}
		counts[i].Count++
	}
	return slices.DeleteFunc(counts, func(c *nusav1.CountedReason) bool { return c == nil })
}
