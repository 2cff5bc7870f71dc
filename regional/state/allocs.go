package state

import (
	"slices"
	"time"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// putAlloc stores a new or changed allocation and updates charges, indexes and counts. The
// caller must not use a afterwards.
func (t *txn) putAlloc(a *Alloc) { t.putAllocOf(t.groupOf(a), a) }

// putAllocOf is like putAlloc, for a caller that already has the touched group.
func (t *txn) putAllocOf(g *group, a *Alloc) {
	ref := allocKey{g.gid, a.Index, a.Seq}
	a.ModifyIndex, a.ModifiedUnixNano = t.index, t.now
	in := t.instance(g, a.Index)
	old := in.attempt(a.Seq)
	in.put(a)
	if old != nil {
		t.byState[old.State]--
		if old.unsure() {
			t.unsure--
		}
	} else {
		g.allocs++
		t.addID(a.ID, ref)
		if u := t.useFor(a.NodeNum); u != nil {
			u.allocs = u.allocs.With(ref, t.hasAlloc)
		}
	}
	t.byState[a.State]++
	if a.unsure() {
		t.unsure++
	}
	was := old != nil && old.Charged
	if a.Charged != was {
		t.charge(a, a.Charged)
	}
	if !a.Live() && !a.Charged && (old == nil || was) {
		t.ended.Set(t.own, endedKey{a.ModifiedUnixNano, a.Seq}, ref)
	}
	t.refresh(g, a.Index)
}

// order marks a change that the agent must know. The caller stores a afterwards.
func (t *txn) order(a *Alloc) {
	a.OrderIndex = t.index
	t.res.Orders = append(t.res.Orders, a)
}

// end moves a live allocation to a terminal state. A lost allocation stays charged until
// its node confirms the end.
func end(a *Alloc, s AllocState, reason Reason, message string) {
	a.State, a.Reason, a.Message = s, reason, message
	a.Desired = Stop
	a.Charged = s == Lost
	a.Moving, a.Disconnected = false, false
}

// recordEnd stores the end of an allocation in its instance, if the allocation is the
// newest one.
func (t *txn) recordEnd(a *Alloc) {
	g := t.groupOf(a)
	in := g.insts.get(a.Index)
	if in == nil || in.Epoch != a.Epoch {
		return
	}
	in = t.instance(g, a.Index)
	in.EndedUnixNano = t.now
	in.Reason, in.Message = a.Reason, a.Message
}

// recordFailure updates the instance after an end that an agent reported. asked is true if
// the end was ordered. A batch instance that completed is done. An end that was not ordered
// counts against the group's reschedule policy. An end does not count if it belongs to an
// older form of the group or to an earlier run.
func (t *txn) recordFailure(a *Alloc, asked bool, why *retry.Failure) {
	g := t.groupOf(a)
	in := g.insts.get(a.Index)
	if in == nil || in.Epoch != a.Epoch || in.Hash != a.GroupHash || !sameRun(in.Run, a.Run) {
		return
	}
	in = t.instance(g, a.Index)
	if a.Declined {
		if !slices.Contains(in.Declined, a.NodeID) {
			in.Declined = append(slices.Clip(in.Declined), a.NodeID)
		}
		return
	}
	job, ok := t.Job(a.Key().JobKey(), a.JobVersion)
	if !ok {
		return
	}
	spec := job.Group(a.Group)
	switch {
	case spec == nil:
		return
	case a.State == Complete && job.Type == Batch:
		in.Done = true
		return
	case asked || notTaskFault(a.Reason):
		return
	}
	policy := spec.Reschedule
	if job.Type != Batch && a.RunningUnixNano > 0 && t.now-a.RunningUnixNano >= int64(steadyAfter(policy)) {
		in.Failures = 0
	}
	in.Failures++
	if t.cluster.FeatureLevel >= RetryLevel {
		t.decideRetry(in, spec, why, a.Local)
		return
	}
	if in.Failures > policy.Attempts {
		in.Exhausted = true
		in.Reason = ReasonReschedulesExhausted
		return
	}
	in.NotBeforeUnixNano = t.now + int64(retry.Backoff(policy.From, policy.To, in.Failures))
}

// decideRetry decides what follows a failure of an instance. in.Failures counts it already. local: the
// job is one of the region's own, so no other region can have it.
func (t *txn) decideRetry(in *inst, spec *Group, why *retry.Failure, local bool) {
	policy := spec.Retry
	if policy == nil {
		r := spec.Reschedule
		policy = &retry.Policy{Attempts: r.Attempts, Default: retry.Rule{Attempts: -1, From: r.From, To: r.To}}
	}
	if why == nil {
		why = &retry.Failure{}
	}
	d, record := retry.Decide(policy, in.Retry, *why, in.Failures)
	record.Leave = record.Leave && !local && d.Verdict == retry.Again && t.cluster.FeatureLevel >= AttemptsLevel && !plant.Is(plant.LeaveForgotten)
	in.Retry = record
	in.Exhausted = d.Verdict != retry.Again && !plant.Is(plant.RetryForever)
	switch {
	case d.Verdict == retry.Again:
		in.NotBeforeUnixNano = t.now + int64(d.Wait)
	case d.Verdict == retry.Useless:
		in.Reason = ReasonPermanentFailure
	case spec.Retry != nil:
		in.Reason = ReasonRetriesExhausted
	default:
		in.Reason = ReasonReschedulesExhausted
	}
}

// recordLoss counts the loss of a node as a failure of the attempt that ran there, if the group has a
// retry policy. Without one, such an attempt is replaced at no cost. asked is true if the attempt was
// being stopped.
func (t *txn) recordLoss(a *Alloc, asked bool) {
	if t.cluster.FeatureLevel < RetryLevel || a.Reason != ReasonNodeLost {
		return
	}
	if job, ok := t.Job(a.Key().JobKey(), a.JobVersion); ok {
		if spec := job.Group(a.Group); spec != nil && spec.Retry != nil {
			t.recordFailure(a, asked, &retry.Failure{Category: retry.NodeLost})
		}
	}
}

// Failure reports whether the allocation ended by itself. The instance is then tried on
// other nodes first.
func (a *Alloc) Failure() bool {
	return (a.State == Failed || a.State == Complete) && !a.Declined && !notTaskFault(a.Reason)
}

// notTaskFault reports whether the agent, not the task, caused an end.
func notTaskFault(r Reason) bool {
	return r == ReasonLeaseExpired || r == ReasonAgentLeaving || r == ReasonNodeDraining
}

// steadyAfter returns how long a service must run before its earlier failures no longer
// count: the longest back-off, but at least ten minutes.
func steadyAfter(p Reschedule) time.Duration { return max(p.To, 10*time.Minute) }

// charge adds an allocation to the use of its node, or removes it.
func (t *txn) charge(a *Alloc, on bool) {
	u := t.useFor(a.NodeNum)
	if u == nil {
		return
	}
	d := int32(1)
	if on {
		u.Resources = u.Resources.Add(a.Resources)
		t.allocated = t.allocated.Add(a.Resources)
	} else {
		d = -1
		u.Resources = u.Resources.Sub(a.Resources)
		t.allocated = t.allocated.Sub(a.Resources)
	}
	u.Allocs += d
	if len(a.Ports) > 0 {
		u.Ports = chargePorts(u.Ports, a.Ports, on)
	}
	if len(a.GPUs) > 0 {
		n, _ := t.nodes.Get(str(a.NodeID))
		u.GPUMilli = slices.Clone(u.GPUMilli)
		for _, grant := range a.GPUs {
			if i := deviceIndex(n, grant.Device); i >= 0 && i < len(u.GPUMilli) {
				u.GPUMilli[i] += d * grant.ShareMilli
			}
		}
	}
	if len(a.Apart) > 0 {
		u.Apart = chargeTags(u.Apart, a.Apart, on)
	}
	if a.Dedicated {
		u.Dedicated += d
		u.DedicatedJob = a.Key().JobKey()
		if u.Dedicated == 0 {
			u.DedicatedJob = JobKey{}
		}
	}
}

func chargePorts(used []int32, ports []PortGrant, on bool) []int32 {
	out := make([]int32, 0, len(used)+len(ports))
	out = append(out, used...)
	for _, p := range ports {
		i, found := slices.BinarySearch(out, p.Port)
		if on {
			out = slices.Insert(out, i, p.Port)
		} else if found {
			out = slices.Delete(out, i, i+1)
		}
	}
	return out
}

func chargeTags(used, tags []string, on bool) []string {
	if on {
		return slices.Sorted(slices.Values(slices.Concat(used, tags)))
	}
	out := slices.Clone(used)
	for _, tag := range tags {
		if i, found := slices.BinarySearch(out, tag); found {
			out = slices.Delete(out, i, i+1)
		}
	}
	return out
}

// useFor returns the writable use of a node. It returns nil if the node was removed.
func (t *txn) useFor(num uint32) *use {
	u, ok := t.uses.Get(num)
	if !ok {
		return nil
	}
	if u.own != t.own {
		c := *u
		c.own = t.own
		u = &c
		t.uses.Set(t.own, num, u)
	}
	return u
}

// recountGPUs counts the used GPU shares again, because the order of the devices may have
// changed.
func (t *txn) recountGPUs(n *Node) {
	u := t.useFor(n.Num)
	u.GPUMilli = make([]int32, len(n.GPUs))
	for a := range t.allocsOn(n.Num) {
		if !a.Charged {
			continue
		}
		for _, grant := range a.GPUs {
			if i := deviceIndex(n, grant.Device); i >= 0 {
				u.GPUMilli[i] += grant.ShareMilli
			}
		}
	}
}

func deviceIndex(n *Node, id string) int {
	return slices.IndexFunc(n.GPUs, func(g GPU) bool { return g.ID == id })
}
