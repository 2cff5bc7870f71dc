package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nusa-scheduler/nusa/agent/health"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/internal/golden"
)

// TestGoldens runs the scripts in testdata. Each line of a script is an event. The lines
// after it, with "> ", are the planned actions. The test applies the actions: it launches
// and closes tasks. Later events of the script give their results.
func TestGoldens(t *testing.T) { golden.Scripts(t, "testdata/*.txt", 1, runScript) }

// epoch is time 0 of the scripts.
var epoch = time.Unix(0, 0).UTC()

// world is the state of a script.
type world struct {
	t      *testing.T
	now    time.Duration
	leases lease.Holder
	host   Host
	allocs map[string]*Alloc
	actual map[string]Actual
}

func runScript(t *testing.T, script string) string {
	w := &world{t: t, host: Host{CPUMilli: 1000, MemoryBytes: 1000, DiskBytes: 1000, MaxStarting: 3, Drivers: map[string]Driver{"process": {Fencing: true}, "docker": {}}},
		allocs: map[string]*Alloc{}, actual: map[string]Actual{}}
	var out strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "> ") {
			continue
		}
		out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		w.event(strings.Fields(line))
		out.WriteString(w.plan())
	}
	return out.String()
}

// plan makes plans until nothing changes, like the engine.
func (w *world) plan() string {
	var b strings.Builder
	var wake time.Time
	for range 8 {
		p := Make(w.input())
		wake = p.Wake
		if len(p.Actions) == 0 {
			break
		}
		for _, a := range p.Actions {
			fmt.Fprintf(&b, "> %s\n", a)
			w.apply(a)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(w.allocs)) {
		act := w.actual[id]
		act.Reached = StateOf(*w.allocs[id], act)
		w.actual[id] = act
	}
	if !wake.IsZero() {
		fmt.Fprintf(&b, "> next plan at %s\n", wake.Sub(epoch))
	}
	if b.Len() == 0 {
		return "> nothing\n"
	}
	return b.String()
}

func (w *world) input() Input {
	in := Input{Now: epoch.Add(w.now), Host: w.host, Actual: w.actual, Leases: w.leases.At(w.now)}
	for _, id := range slices.Sorted(maps.Keys(w.allocs)) {
		in.Allocs = append(in.Allocs, *w.allocs[id])
	}
	return in
}

func (w *world) apply(a Action) {
	act := w.actual[a.Alloc]
	switch a.Kind {
	case Accept:
		act.Accepted = true
	case Decline:
		act.End = &Outcome{State: a.State, Declined: true, Reason: a.Reason, Message: a.Message}
	case Close:
		act.Closing = &Outcome{State: a.State, Reason: a.Reason, Message: a.Message, Since: epoch.Add(w.now)}
	case End:
		act.End = &Outcome{State: a.State, Reason: a.Reason, Message: a.Message}
	case Remove:
		delete(w.actual, a.Alloc)
		delete(w.allocs, a.Alloc)
		return
	case Adopt:
		w.task(&act, a.Task, func(t *TaskActual) { t.Phase = Up })
	case Start:
		w.task(&act, a.Task, func(t *TaskActual) {
			*t = t.Started(taskOf(w.allocs[a.Alloc], a.Task), a.Run)
			if a.Restart {
				t.Restarts = append(slices.Clone(t.Restarts), epoch.Add(w.now))
			}
		})
	case StopRun:
		w.task(&act, a.Task, func(t *TaskActual) { *t = t.Stopping(a.Reason) })
	case Resize:
		w.task(&act, a.Task, func(t *TaskActual) { t.Resizing = true })
	}
	w.actual[a.Alloc] = act
}

func taskOf(a *Alloc, name string) Task {
	return a.Tasks[slices.IndexFunc(a.Tasks, func(t Task) bool { return t.Name == name })]
}

func (w *world) task(act *Actual, name string, change func(*TaskActual)) {
	act.Tasks = maps.Clone(act.Tasks)
	if act.Tasks == nil {
		act.Tasks = map[string]TaskActual{}
	}
	t := act.Tasks[name]
	change(&t)
	act.Tasks[name] = t
}

// event is one line of a script.
func (w *world) event(f []string) {
	w.t.Helper()
	args := map[string]string{}
	for _, a := range f[1:] {
		k, v, _ := strings.Cut(a, "=")
		args[k] = v
	}
	switch f[0] {
	case "at":
		w.now = w.duration(f[1])
	case "host":
		w.setHost(args)
	case "lease": // "lease 10s" grants the node's lease until 10s
		w.grant(w.duration(f[1])-w.now, 0)
	case "region_lease":
		w.grant(0, w.duration(f[1])-w.now)
	case "alloc":
		w.addAlloc(f[1], args)
	case "stop", "forget":
		a := w.allocs[f[1]]
		a.Want, a.WantReason, a.WantMessage = Stop, Reason(args["reason"]), "ordered"
		if f[0] == "forget" {
			a.Want = Forget
		}
	case "healthy", "unhealthy":
		id, name, _ := strings.Cut(f[1], "/")
		act := w.actual[id]
		w.task(&act, name, func(t *TaskActual) {
			*t = t.WithHealth(map[string]health.Phase{"healthy": health.Healthy, "unhealthy": health.Unhealthy}[f[0]], strings.Join(f[2:], " "))
		})
		w.actual[id] = act
	case "up", "exit", "fail", "unknown", "killed", "uncertain", "restart", "resized", "refused":
		w.taskEvent(f, args)
	case "resize": // "resize a1 cpu=200 memory=64": another order, with these limits for each task
		a := w.allocs[f[1]]
		a.Tasks, a.Resized = slices.Clone(a.Tasks), true
		for i := range a.Tasks {
			a.Tasks[i].Limits = Limits{CPUMilli: w.number(args["cpu"]), MemoryBytes: w.number(args["memory"]) << 20}
		}
	case "agent_restarts": // the engine does not store that a driver is changing limits
		act := w.actual[f[1]]
		w.task(&act, "main", func(t *TaskActual) { t.Resizing, t.Phase = false, Unknown })
		w.actual[f[1]] = act
	case "limits":
		got, why := LimitsOf(*w.allocs[f[1]], w.actual[f[1]])
		if is := [...]string{"unknown", "applied", "refused"}[got] + why; is != strings.Join(f[2:], " ") {
			w.t.Errorf("%s: %s", strings.Join(f, " "), is)
		}
	case "state":
		if got := StateOf(*w.allocs[f[1]], w.actual[f[1]]).String(); got != f[2] {
			w.t.Errorf("%s is %s", strings.Join(f, " "), got)
		}
	default:
		w.t.Fatalf("unknown line %q", strings.Join(f, " "))
	}
}

func (w *world) duration(s string) time.Duration {
	w.t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// grant grants leases from now on. 0: no lease.
func (w *world) grant(node, region time.Duration) {
	w.leases.Granted(lease.Grant{ID: w.leases.Request(w.now), Node: node, Region: region}, 0)
}

func (w *world) number(s string) int64 {
	w.t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) setHost(args map[string]string) {
	for k, v := range args {
		switch k {
		case "leaving":
			w.host.Leaving = true
		case "pausing":
			w.host.Pausing = true
		case "quota":
			w.host.Quota = int(w.number(v))
		case "driver_problem":
			w.host.Drivers = map[string]Driver{"process": {Problem: v}}
		case "used":
			w.host.PortsInUse = map[int]bool{int(w.number(v)): true}
		default:
			w.t.Fatalf("host %s", k)
		}
	}
}

func (w *world) addAlloc(id string, args map[string]string) {
	a := &Alloc{ID: id, Ask: Ask{Drivers: []string{"process"}}}
	restart := Restart{Attempts: 0, Window: 10 * time.Minute, Delay: time.Second}
	names, checked := []string{"main"}, map[string]bool{}
	hooks, sidecars, delays, leader := map[string]Hook{}, map[string]bool{}, map[string]time.Duration{}, ""
	kinds := map[string]Hook{"prestart": Prestart, "poststart": Poststart, "poststop": Poststop}
	for _, k := range slices.Sorted(maps.Keys(args)) {
		v := args[k]
		switch k {
		case id, "service":
		case "batch":
			a.Batch = true
		case "restarts":
			restart.Attempts = int(w.number(v))
		case "checked":
			for _, n := range strings.Split(v, ",") {
				checked[n] = true
			}
		case "prestart", "poststart", "poststop": // names of tasks; a + after a name: a sidecar
			for _, n := range strings.Split(v, ",") {
				n, sidecar := strings.CutSuffix(n, "+")
				hooks[n], sidecars[n] = kinds[k], sidecar
			}
		case "delay":
			n, d, _ := strings.Cut(v, ":")
			delays[n] = w.duration(d)
		case "leader":
			leader = v
		case "window":
			restart.Window = w.duration(v)
		case "tasks":
			names = strings.Split(v, ",")
		case "max":
			a.MaxRuntime = w.duration(v)
		case "want":
			a.Want, a.WantReason = Stop, Reason(v)
		case "fenced", "node":
			a.Binding = lease.Node
		case "region":
			a.Binding = lease.Region
		case "both":
			a.Binding = lease.Both
		case "cpu":
			a.Ask.CPUMilli = w.number(v)
		case "memory":
			a.Ask.MemoryBytes = w.number(v)
		case "port":
			a.Ask.Ports = append(a.Ask.Ports, int(w.number(v)))
		case "driver":
			a.Ask.Drivers = []string{v}
		case "unsupported":
			a.Ask.Unsupported = v
		default:
			w.t.Fatalf("alloc %s", k)
		}
	}
	a.Ask.Fenced = a.Binding != lease.None
	for _, n := range names {
		a.Tasks = append(a.Tasks, Task{Name: n, KillTimeout: 10 * time.Second, Restart: restart, Checked: checked[n],
			Hook: hooks[n], Sidecar: sidecars[n], Leader: n == leader, ShutdownDelay: delays[n]})
	}
	w.allocs[id] = a
}

// taskEvent applies an event of a task: "up a/main", "exit a/main code=1", "killed a/main
// signal=9", "fail a/main reason=start_failed final=yes", "unknown a/main" or "uncertain
// a/main".
func (w *world) taskEvent(f []string, args map[string]string) {
	id, name, _ := strings.Cut(f[1], "/")
	act := w.actual[id]
	w.task(&act, name, func(t *TaskActual) {
		t.Finished = epoch.Add(w.now)
		switch f[0] {
		case "up":
			t.Phase, t.Finished = Up, time.Time{}
			if act.Started.IsZero() {
				act.Started = epoch.Add(w.now)
			}
		case "restart": // an operator asks for another run
			t.RestartAsked, t.Finished = true, time.Time{}
		case "resized", "refused": // the driver's answer to the latest change of limits
			t.Finished = time.Time{}
			to := taskOf(w.allocs[id], name).Limits
			*t = t.Resized(to)
			if f[0] == "refused" {
				t.Limits = nil
				*t = t.NotResized(to, "too little")
			}
		case "unknown":
			t.Phase = Unknown
		case "uncertain":
			t.Phase, t.Run, t.StartUncertain = Waiting, max(1, t.Run), true
		case "exit":
			*t = t.Finish(TaskActual{Phase: Ended, Run: t.Run, Finished: t.Finished, ExitCode: int(w.number(args["code"])), Reason: Reason(args["reason"])})
		case "killed":
			*t = t.Finish(TaskActual{Phase: Ended, Run: t.Run, Finished: t.Finished, ExitCode: 137, Signal: int(w.number(args["signal"]))})
		case "fail":
			*t = t.Finish(TaskActual{Phase: Ended, Run: t.Run, Finished: t.Finished, ExitCode: -1, Reason: Reason(args["reason"]), Message: "no such file", Final: args["final"] != ""})
		}
	})
	w.actual[id] = act
}
