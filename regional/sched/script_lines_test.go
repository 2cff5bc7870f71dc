package sched_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

func parseNode(a args) state.Node {
	n := state.Node{
		ID: a.word(1), Name: a.word(1), Pool: "default", Labels: map[string]string{},
		Capacity: state.Resources{
			CPUMilli: a.int("cpu", 4000), MemoryBytes: a.int("mem", 8192) << 20, DiskBytes: a.int("disk", 100) << 30,
		},
		InstanceQuota: int32(a.int("quota", 0)), PortMin: 20000, PortMax: 20999,
		ControlPlane: a.keys["control"] != "",
		Drivers:      []state.Driver{{Name: "process", Healthy: true, Capabilities: []string{"self_fencing"}}},
	}
	if p := a.keys["pool"]; p != "" {
		n.Pool = p
	}
	if p := a.list("ports"); p != nil {
		lo, _ := strconv.Atoi(p[0])
		hi, _ := strconv.Atoi(p[1])
		n.PortMin, n.PortMax = int32(lo), int32(hi)
	}
	for _, l := range a.list("labels") {
		k, v, _ := strings.Cut(l, ":")
		n.Labels[k] = v
	}
	for _, d := range a.list("drivers") {
		name, caps, _ := strings.Cut(d, ":")
		n.Drivers = append(n.Drivers, state.Driver{
			Name: strings.TrimPrefix(name, "!"), Healthy: !strings.HasPrefix(name, "!"), Capabilities: strings.Fields(strings.ReplaceAll(caps, "+", " ")),
		})
	}
	if a.keys["live"] != "" { // its agent changes the resources of running tasks
		n.Drivers[0].Capabilities = append(n.Drivers[0].Capabilities, "live_resources")
	}
	n.VolumesAllow, n.VolumesReported = a.list("allow"), a.keys["allow"] != ""
	if a.keys["allow"] == "none" {
		n.VolumesAllow = nil
	}
	for i, model := range a.list("gpus") {
		n.GPUs = append(n.GPUs, state.GPU{ID: "gpu" + strconv.Itoa(i), Model: model})
	}
	return n
}

// drainLine reads "drain NODE [off] [deadline=5m] [system=keep]".
func drainLine(now int64, a args) *state.DrainNode {
	c := &state.DrainNode{ID: a.word(1), Drain: a.word(2) != "off", KeepSystem: a.keys["system"] == "keep"}
	if d := a.duration("deadline", 0); d > 0 {
		c.DeadlineUnixNano = now + int64(d)
	}
	return c
}

// define makes a version of a job with one group. The second word is the name of the group.
// A line with more=yes adds a group to the version.
func (w *world) define(a args) {
	typ := map[string]state.JobType{"": state.Service, "service": state.Service, "batch": state.Batch, "system": state.System}[a.keys["type"]]
	ask := state.Ask{
		Resources: state.Resources{
			CPUMilli: a.int("cpu", 500), MemoryBytes: a.int("mem", 256) << 20, DiskBytes: a.int("disk", 0) << 30,
		},
		Pool: "default", Dedicated: a.keys["dedicated"] != "", Spread: a.keys["spread"],
	}
	if p := a.keys["pool"]; p != "" {
		ask.Pool = p
	}
	for _, c := range a.list("constraints") {
		ask.Constraints = append(ask.Constraints, strings.ReplaceAll(c, ":", "="))
	}
	for _, f := range a.list("affinities") {
		expr, weight, _ := strings.Cut(f, "@")
		n, _ := strconv.Atoi(weight)
		ask.Affinities = append(ask.Affinities, state.Affinity{Expr: strings.ReplaceAll(expr, ":", "="), Weight: int32(n)})
	}
	ask.Volumes = slices.Sorted(slices.Values(a.list("volumes")))
	ask.Apart = slices.Sorted(slices.Values(a.list("apart")))
	for _, d := range append([]string{"process"}, a.list("drivers")...) {
		name, caps, _ := strings.Cut(d, ":")
		ask.Drivers = append(ask.Drivers, state.DriverAsk{Name: name, Capabilities: strings.Fields(strings.ReplaceAll(caps, "+", " "))})
	}
	for _, p := range a.list("ports") {
		label, static, _ := strings.Cut(p, ":")
		n, _ := strconv.Atoi(static)
		ask.Ports = append(ask.Ports, state.PortAsk{Label: label, Static: int32(n)})
	}
	for _, g := range a.list("gpus") { // count, share"m", or count":"share"m", and "@" model"|"model
		amount, model, _ := strings.Cut(g, "@")
		var gpu state.GPUAsk
		if model != "" {
			gpu.Models = strings.Split(model, "|")
		}
		if count, share, ok := strings.Cut(amount, ":"); ok {
			n, _ := strconv.Atoi(count)
			gpu.Count, amount = int32(n), share
		}
		n, _ := strconv.Atoi(strings.TrimSuffix(amount, "m"))
		if strings.HasSuffix(amount, "m") {
			gpu.ShareMilli = int32(n)
		} else {
			gpu.Count = int32(n)
		}
		ask.GPUs = append(ask.GPUs, gpu)
	}
	spec := state.Group{
		Name: a.word(2), Ask: ask, Hash: uint64(a.int("hash", a.int("v", 1))),
		Reschedule:  state.Reschedule{Attempts: int32(a.int("attempts", 5)), From: a.duration("from", 5*time.Second), To: a.duration("to", 10*time.Minute)},
		Disconnect:  state.Disconnect{After: a.duration("after", 30*time.Second), Replace: a.keys["replace"] != "no", StopRunning: a.keys["running"] == "stop", StopInRegion: a.keys["region"] == "stop", KeepReplacement: a.keys["reconcile"] == "replacement"},
		MaxParallel: int32(a.int("parallel", 1)), Singleton: a.keys["singleton"] != "", KillTimeout: 5 * time.Second,
	}
	spec.Rest = uint64(a.int("rest", 0))
	spec.Stagger = a.duration("stagger", 0)
	if _, set := a.keys["healthy"]; set {
		spec.MinHealthy = cmp.Or(a.duration("healthy", 0), state.NoMinHealthy)
	}
	spec.Retry, spec.Parallel = retryPolicy(a), int32(a.int("atonce", 0))
	if old := w.jobs[a.word(1)]; a.keys["more"] != "" {
		with := *old
		with.Groups = append(slices.Clone(old.Groups), spec)
		w.jobs[a.word(1)] = &with
		return
	}
	w.jobs[a.word(1)] = &state.Job{
		Key: state.JobKey{Namespace: "default", Job: a.word(1)}, Version: a.int("v", 1), Type: typ,
		Priority: int32(a.int("priority", 50)), Spec: []byte(strings.Join(a.words, " ")), Groups: []state.Group{spec},
	}
}

// retryPolicy reads "retries=5 rules=exit:3:fail,category:oom:2s" of a job.
func retryPolicy(a args) *retry.Policy {
	if a.keys["retries"] == "" {
		return nil
	}
	p := &retry.Policy{Attempts: int32(a.int("retries", 0)), Default: retry.Rule{Attempts: -1, From: 5 * time.Second, To: time.Minute}}
	for _, text := range a.list("rules") {
		f := strings.Split(text, ":")
		r := retry.Rule{Attempts: -1}
		if n, err := strconv.Atoi(f[1]); err == nil {
			r.ExitCodes = []int32{int32(n)}
		} else {
			r.Categories = []retry.Category{retry.Category(f[1])}
		}
		r.Fail = f[2] == "fail"
		if !r.Fail {
			d, err := time.ParseDuration(f[2])
			if err != nil {
				panic(err)
			}
			r.From, r.To = d, time.Minute
		}
		if len(f) > 3 && f[3] == "region" { // exit:4:1s:region
			r.OtherRegion = true
			f = f[:3]
		}
		if len(f) > 3 { // category:oom:1s:1500, the factor of the memory in thousandths
			factor, err := strconv.ParseInt(f[3], 10, 64)
			if err != nil {
				panic(err)
			}
			r.MemoryMilli, p.MemoryBytes = factor, int64(a.int("mem", 0))<<20
		}
		p.Rules = append(p.Rules, r)
	}
	return p
}

// order gives the region a slot: order JOB FROM-TO [group=] [gen=] [desired=] [state=].
func (w *world) order(a args) state.Result {
	job := w.jobs[a.word(1)]
	from, to, _ := strings.Cut(a.word(2), "-")
	lo, _ := strconv.Atoi(from)
	hi, _ := strconv.Atoi(to)
	w.gen++
	s := state.Slot{
		Namespace: "default", Job: a.word(1), Group: cmp.Or(a.keys["group"], job.Groups[0].Name), From: int32(lo), To: int32(hi),
		Generation: a.int("gen", w.gen), Revision: w.gen, JobVersion: job.Version,
		UnlessConnected: a.keys["unless"] == "connected", Parallel: int32(a.int("share", 0)), Run: a.int("run", 0),
		Desired: map[string]state.Desired{"": state.Run, "stop": state.Stop, "revoke": state.Revoke, "hold": state.Hold}[a.keys["desired"]],
		State:   map[string]state.SlotState{"": state.SlotOffered, "accepted": state.SlotAccepted, "done": state.SlotDone}[a.keys["state"]],
	}
	return w.apply(state.Command{ApplyOrders: &state.ApplyOrders{
		Orders: []state.SlotOrder{{Slot: s, Job: job}}, More: a.keys["more"] != "",
	}})
}

var allocStates = map[string]state.AllocState{
	"pending": state.Pending, "starting": state.Starting, "running": state.Running, "complete": state.Complete,
	"failed": state.Failed, "stopped": state.Stopped, "declined": state.Failed,
}

// report applies a report of an allocation's node: report ALLOC STATE [reason=] [message=]
// [restarts=] [down=yes] [limits=].
func (w *world) report(a args) state.Result {
	al, ok := w.st.Alloc(a.word(1))
	if !ok {
		return state.Result{Err: fmt.Errorf("no allocation %s", a.word(1))}
	}
	return w.apply(state.Command{AgentReports: &state.AgentReports{NodeID: al.NodeID, Reports: []state.AllocReport{{
		ID: al.ID, State: allocStates[a.word(2)], Declined: a.word(2) == "declined", Reason: state.Reason(a.keys["reason"]),
		Limits: map[string]state.Limits{"applied": state.LimitsApplied, "refused": state.LimitsRefused}[a.keys["limits"]], Order: al.OrderIndex,
		Failure: failureOf(a), Restarts: int32(a.int("restarts", 0)), Down: a.keys["down"] != "", Message: a.keys["message"],
	}}}})
}

// failureOf reads "exit=3" and "category=config", and the word permanent, of a report.
func failureOf(a args) *retry.Failure {
	if a.keys["exit"] == "" && a.keys["category"] == "" {
		return nil
	}
	return &retry.Failure{
		Category: retry.Category(cmp.Or(a.keys["category"], "app")), ExitCode: int32(a.int("exit", 0)), Permanent: a.word(3) == "permanent",
	}
}
