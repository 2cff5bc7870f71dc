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
		res = w.apply(state.Command{DrainNode: drainLine(w.now, a)})
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
	case "override": // override JOB stop=yes | count=N | clear=yes
		c := &state.SetOverride{Namespace: "default", Job: a.word(1), Clear: a.keys["clear"] != "", Stop: a.keys["stop"] != "", Count: int32(a.int("count", 0))}
		if job := w.jobs[a.word(1)]; job != nil {
			c.Group = job.Groups[0].Name
		}
		res = w.apply(state.Command{SetOverride: c})
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
	case "changes": // what the orders of a job's group do to its instances
		for _, c := range sched.Changes(in, state.GroupKey{Namespace: "default", Job: a.word(1), Group: w.jobs[a.word(1)].Groups[0].Name}) {
			fmt.Fprintf(&w.out, "[%d] on %s: %s\n", c.Index, c.NodeName, cmp.Or(c.Problem, "in place"))
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
			fmt.Fprintf(&w.out, "%s wanted %d: %d pending, %d starting, %d running, %d complete, %d failed, %d stopped, %d lost, %d outdated",
				g.Key, g.Wanted, c.Pending, c.Starting, c.Running, c.Complete, c.Failed, c.Stopped, c.Lost, c.Outdated)
			if c.Held > 0 {
				fmt.Fprintf(&w.out, ", %d held", c.Held)
			}
			fmt.Fprintln(&w.out)
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
