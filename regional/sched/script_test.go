package sched_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/internal/golden"

	"github.com/nusa-scheduler/nusa/regional/accept"
	"github.com/nusa-scheduler/nusa/regional/presence"
	"github.com/nusa-scheduler/nusa/regional/sched"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
)

// TestScripts runs scripts. A script has commands, a line of ----, the output of the
// commands, and an empty line. An expected output may be changed only if the cause is
// understood.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { runScript(t, file) })
	}
}

func runScript(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld()
	var out strings.Builder
	lines := strings.Split(string(text), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		out.WriteString(line)
		if i < len(lines)-1 {
			out.WriteByte('\n')
		}
		if line != "----" {
			if line != "" && !strings.HasPrefix(line, "#") {
				w.run(t, fmt.Sprintf("%s:%d", file, i+1), line)
			}
			continue
		}
		var want []string
		for i+1 < len(lines) && lines[i+1] != "" {
			i++
			want = append(want, lines[i])
		}
		got := strings.TrimSuffix(w.out.String(), "\n")
		w.out.Reset()
		out.WriteString(got + "\n")
		if wanted := strings.Join(want, "\n"); got != wanted && !golden.Updating() {
			t.Errorf("%s:%d: got\n%s\nwant\n%s", file, i+1, got, wanted)
		}
	}
	if golden.Updating() {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// world is a region that scripts change.
type world struct {
	st    *state.State
	index uint64
	now   int64         // on the wall clock
	boot  time.Duration // on the clock that nobody sets
	jobs  map[string]*state.Job
	// contacts of the nodes with the present master, by id.
	contacts map[string]*presence.Node
	ids      int
	gen      int64
	link     bool
	loads    loads
	out      strings.Builder
	// shadow gets the same commands. It may have been restored in between.
	shadow *state.State
}

func newWorld() *world {
	w := &world{st: state.New(), now: int64(time.Hour), jobs: map[string]*state.Job{}, contacts: map[string]*presence.Node{}, link: true}
	w.apply(state.Command{Bootstrap: &state.Bootstrap{ClusterID: "c", Region: "r"}})
	return w
}

func (w *world) apply(c state.Command) state.Result {
	w.index++
	c.NowUnixNano = w.now
	if w.shadow != nil {
		w.shadow.Apply(w.index, c)
	}
	return w.st.Apply(w.index, c)
}

func (w *world) input() sched.Input {
	view, boot := w.st.Snapshot(), w.boot
	contacts := map[string]presence.Node{}
	for id, c := range w.contacts {
		contacts[id] = *c
	}
	return sched.Input{View: view, NowUnixNano: w.now, NodeLease: testLease, Funcs: testFuncs, Load: w.loads.next(view), Absence: func(id string) presence.Absence {
		n, _ := view.Node(id)
		c := contacts[id]
		return c.Absence(n.Status, boot)
	}}
}

// testLease is the lease of the nodes.
const testLease = 10 * time.Second

// beat lets each ready node send a message and gives it a lease.
func (w *world) beat() {
	for n := range w.st.Nodes() {
		c := w.contacts[n.ID]
		if c == nil {
			c = new(presence.New(w.boot))
			w.contacts[n.ID] = c
		}
		if n.Status == state.NodeReady {
			c.Arrived(w.boot)
			c.Returned()
			c.Grant(0)
			c.Handled(w.boot)
			c.Status(n.Status, presence.Current, testLease, w.boot)
		}
	}
}

// pass lets time pass on both clocks.
func (w *world) pass(d time.Duration) {
	w.beat()
	w.now += int64(d)
	w.boot += d
}

// testFuncs evaluate "key=value" and "key!=value" over labels, and "error".
var testFuncs = sched.Funcs{
	Match: func(expr string, n *state.Node) (bool, error) {
		if k, v, ok := strings.Cut(expr, "!="); ok {
			return n.Labels[k] != v, nil
		}
		k, v, ok := strings.Cut(expr, "=")
		if !ok {
			return false, errors.New("no such key")
		}
		return n.Labels[k] == v, nil
	},
	Value: func(expr string, n *state.Node) (string, error) {
		if v, ok := n.Labels[expr]; ok {
			return v, nil
		}
		return "", errors.New("no such key")
	},
}

// args are the words of a line: plain ones and key=value ones.
type args struct {
	words []string
	keys  map[string]string
}

func parseArgs(line string) args {
	a := args{keys: map[string]string{}}
	for _, f := range strings.Fields(line) {
		if k, v, ok := strings.Cut(f, "="); ok {
			a.keys[k] = v
		} else {
			a.words = append(a.words, f)
		}
	}
	return a
}

func (a args) word(i int) string {
	if i < len(a.words) {
		return a.words[i]
	}
	return ""
}

func (a args) int(key string, def int64) int64 {
	if v, ok := a.keys[key]; ok {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			panic(err)
		}
		return n
	}
	return def
}

func (a args) duration(key string, def time.Duration) time.Duration {
	if v, ok := a.keys[key]; ok {
		d, err := time.ParseDuration(v)
		if err != nil {
			panic(err)
		}
		return d
	}
	return def
}

func (a args) list(key string) []string {
	if a.keys[key] == "" {
		return nil
	}
	return strings.Split(a.keys[key], ",")
}

func (w *world) run(t *testing.T, where, line string) {
	a := parseArgs(line)
	res := state.Result{}
	switch a.word(0) {
	case "node":
		res = w.apply(state.Command{UpsertNode: &state.UpsertNode{Node: parseNode(a)}})
	case "status":
		w.beat()
		st := map[string]state.NodeStatus{"ready": state.NodeReady, "lost": state.NodeLost, "left": state.NodeLeft}[a.word(2)]
		res = w.apply(state.Command{SetNodeStatus: &state.SetNodeStatus{ID: a.word(1), Status: st}})
	case "leaving":
		for _, l := range sched.DrainingGroups(w.input(), a.word(1)) {
			fmt.Fprintf(&w.out, "%s: %d there, %d fit: %s (%s)\n", l.Key, l.Count, l.Fits, l.Reason, l.Message)
		}
		return
	case "cordon":
		res = w.apply(state.Command{CordonNode: &state.CordonNode{ID: a.word(1), Cordon: a.word(2) != "off"}})
	case "drain":
		res = w.apply(state.Command{DrainNode: &state.DrainNode{ID: a.word(1), Drain: a.word(2) != "off"}})
	case "remove":
		res = w.apply(state.Command{RemoveNode: &state.RemoveNode{ID: a.word(1)}})
	case "job":
		w.define(a)
	case "order":
		res = w.order(a)
	case "purge":
		if c := w.st.Snapshot().Purgeable(w.now, w.now, 1000); c != nil {
			res = w.apply(state.Command{Purge: c})
		}
	case "stop":
		res = w.apply(state.Command{StopLocalJob: &state.StopLocalJob{Namespace: "default", Name: a.word(1), Purge: a.keys["purge"] != ""}})
	case "removed":
		res = w.apply(state.Command{ApplyOrders: &state.ApplyOrders{Removed: a.words[1:]}})
	case "local":
		job := *w.jobs[a.word(1)]
		job.Key.Local = true
		job.Groups = slices.Clone(job.Groups)
		job.Groups[0].Count = int32(a.int("count", 1))
		job.Groups[0].Hash += uint64(a.int("hash", 0))
		job.Spec = []byte(line)
		res = w.apply(state.Command{SubmitLocalJob: &state.SubmitLocalJob{Job: job}})
	case "tick":
		d, err := time.ParseDuration(a.word(1))
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		w.pass(d)
	case "clock": // the wall clock is set
		w.now += int64(a.duration("by", 0))
	case "election": // another master counts from now on
		for id := range w.contacts {
			*w.contacts[id] = presence.New(w.boot)
		}
	case "lease": // longest leases that may still last: of an earlier master, and of the region
		res = w.apply(state.Command{SetLimits: &state.SetLimits{FeatureLevel: 1, NodeLease: a.duration("max", 0)}})
		if d := a.duration("region", 0); d > 0 && res.Err == nil {
			res = w.apply(state.Command{JoinFederation: &state.JoinFederation{FederationID: "f", Term: 1, Nonce: "n", Fence: 1, Lease: d}})
		}
	case "policy", "use":
		w.loads.run(a)
		return
	case "level":
		res = w.apply(state.Command{SetLimits: &state.SetLimits{FeatureLevel: uint32(a.int("to", 0))}})
	case "informed": // the supervisors of a node know all orders
		res = w.apply(state.Command{OrdersStored: &state.OrdersStored{NodeID: a.word(1), Index: w.st.Snapshot().Index()}})
	case "link":
		w.link = a.word(1) == "up"
	case "report":
		res = w.report(a)
	case "converge":
		w.converge()
	default:
		if !w.show(t, a) {
			t.Fatalf("%s: unknown command %q", where, line)
		}
	}
	if res.Err != nil {
		fmt.Fprintf(&w.out, "error: %v\n", res.Err)
	}
	for _, s := range res.Skipped {
		fmt.Fprintf(&w.out, "skipped %s: %s (%s)\n", s.ID, s.Reason, s.Message)
	}
}

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
	n.VolumesAllow, n.VolumesReported = a.list("allow"), a.keys["allow"] != ""
	if a.keys["allow"] == "none" {
		n.VolumesAllow = nil
	}
	for i, model := range a.list("gpus") {
		n.GPUs = append(n.GPUs, state.GPU{ID: "gpu" + strconv.Itoa(i), Model: model})
	}
	return n
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
		UnlessConnected: a.keys["unless"] == "connected", Parallel: int32(a.int("share", 0)),
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
// [restarts=] [down=yes].
func (w *world) report(a args) state.Result {
	al, ok := w.st.Alloc(a.word(1))
	if !ok {
		return state.Result{Err: fmt.Errorf("no allocation %s", a.word(1))}
	}
	return w.apply(state.Command{AgentReports: &state.AgentReports{NodeID: al.NodeID, Reports: []state.AllocReport{{
		ID: al.ID, State: allocStates[a.word(2)], Declined: a.word(2) == "declined", Reason: state.Reason(a.keys["reason"]),
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

// converge lets every connected agent follow its orders, and running allocations become
// proven.
func (w *world) converge() {
	for _, al := range slices.Collect(w.st.Allocs()) {
		if !al.Live() || al.Disconnected {
			continue
		}
		st := state.Running
		if al.Desired == state.Stop {
			st = state.Stopped
		}
		w.apply(state.Command{AgentReports: &state.AgentReports{NodeID: al.NodeID, Reports: []state.AllocReport{{ID: al.ID, State: st}}}})
		if now, ok := w.st.Alloc(al.ID); ok && now.Live() && now.Proving && now.UpUnixNano > 0 {
			w.apply(state.Command{ApplyPlan: &state.ApplyPlan{Proven: []state.ProveAlloc{{ID: al.ID, UpUnixNano: now.UpUnixNano}}}})
		}
	}
}

func (w *world) newID() string {
	w.ids++
	return "a" + strconv.Itoa(w.ids)
}

// show runs the commands that print.
func (w *world) show(t *testing.T, a args) bool {
	in := w.input()
	switch a.word(0) {
	case "plan", "apply":
		p := sched.Make(in)
		if err := sched.Check(in, p); err != nil {
			t.Errorf("checker: %v\n%s", err, p)
		}
		w.out.WriteString(p.String())
		if a.word(0) == "plan" {
			return true
		}
		for _, c := range p.Commands(w.newID, 7) {
			for _, s := range w.apply(state.Command{ApplyPlan: &c}).Skipped {
				t.Errorf("skipped %v", s)
			}
		}
	case "return":
		p := sched.Make(in)
		cmd, next := accept.Return(accept.Input{View: in.View, Unplaced: p.Unplaced, LinkUp: w.link, NowUnixNano: w.now, Grace: accept.DefaultGrace})
		if cmd == nil {
			fmt.Fprintf(&w.out, "nothing to return, ask again in %s\n", next)
			return true
		}
		for _, s := range w.apply(state.Command{AnswerSlots: cmd}).Skipped {
			t.Errorf("skipped %v", s)
		}
		fmt.Fprintf(&w.out, "returned %d parts\n", len(cmd.Answers))
	case "answers":
		for _, an := range accept.Answers(w.st.Snapshot()) {
			fmt.Fprintf(&w.out, "%s/%s[%d-%d] g%d %s %s %s %v\n", an.Job, an.Group, an.From, an.To-1, an.Generation, an.State, an.Reason, an.Message, an.Counts)
		}
	case "explain":
		w.explain(in, w.jobs[a.word(1)])
	case "apply-counted": // like apply, but prints only the numbers
		p := sched.Make(in)
		for _, c := range p.Commands(w.newID, 1000) {
			for _, s := range w.apply(state.Command{ApplyPlan: &c}).Skipped {
				t.Errorf("skipped %v", s)
			}
		}
		fmt.Fprintf(&w.out, "%d placed\n", len(p.Places))
	case "fit":
		ask := w.jobs[a.word(1)].Groups[0].Ask
		fmt.Fprintf(&w.out, "%d fit\n", sched.FitCount(in, &ask, 1000))
	case "bins":
		for _, b := range sched.Bins(in.View, int(a.int("max", 64))) {
			fmt.Fprintf(&w.out, "%d nodes of %s: %dm %d MiB\n", b.Nodes, b.Pool, b.Free.CPUMilli, b.Free.MemoryBytes>>20)
		}
	case "allocs":
		w.allocs()
	case "counts":
		for g := range w.st.Groups() {
			c := g.Counts
			fmt.Fprintf(&w.out, "%s wanted %d: %d pending, %d starting, %d running, %d complete, %d failed, %d stopped, %d lost, %d outdated\n",
				g.Key, g.Wanted, c.Pending, c.Starting, c.Running, c.Complete, c.Failed, c.Stopped, c.Lost, c.Outdated)
		}
	default:
		return false
	}
	return true
}

func (w *world) explain(in sched.Input, job *state.Job) {
	for _, v := range sched.ExplainAsk(in, job, job.Groups[0].Name) {
		if v.Reason != "" {
			fmt.Fprintf(&w.out, "%s: %s: %s\n", v.NodeName, v.Reason, v.Message)
			continue
		}
		fmt.Fprintf(&w.out, "%s: %.2f", v.NodeName, v.Score)
		for _, term := range v.Terms {
			fmt.Fprintf(&w.out, " %s %.2f", term.Name, term.Value)
			if term.Detail != "" {
				fmt.Fprintf(&w.out, " (%s)", term.Detail)
			}
		}
		w.out.WriteByte('\n')
	}
}

func (w *world) allocs() {
	for a := range w.st.Allocs() {
		fmt.Fprintf(&w.out, "%s %s[%d] v%d on %s: %s", a.ID, a.Key(), a.Index, a.JobVersion, a.NodeName, a.DisplayState())
		if a.Desired == state.Stop && a.Live() {
			w.out.WriteString(", to stop")
		}
		if a.Reason != "" {
			fmt.Fprintf(&w.out, " (%s)", a.Reason)
		}
		w.out.WriteByte('\n')
	}
}
