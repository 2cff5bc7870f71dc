package agent

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/agent/setup"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Defaults of fields that a job file may leave out; the job package fills most
// of them in before.
const (
	defaultKillTimeout   = 10 * time.Second
	defaultRestarts      = 3
	defaultRestartWindow = 10 * time.Minute
	defaultRestartDelay  = time.Second
	defaultLogFiles      = 3
	defaultLogBytes      = 10 << 20
	defaultCheckInterval = 10 * time.Second
	defaultCheckTimeout  = 2 * time.Second
	defaultCheckDeadline = 5 * time.Minute
	defaultCheckFailures = int32(3)
)

// Names become parts of paths, so their form is checked here again.
var (
	allocName = regexp.MustCompile(`^[0-9a-zA-Z][0-9a-zA-Z-]{3,63}$`)
	taskName  = regexp.MustCompile(`^[0-9a-zA-Z][0-9a-zA-Z_-]{0,62}$`)
)

// Bounds of what an order says; a job file is held to narrower ones. Sums over
// maxAllocs of maxAsk do not overflow.
const (
	maxAsk      = 1 << 48
	maxPort     = 65535
	maxKill     = 24 * time.Hour
	maxRestarts = 1000
	maxInterval = 24 * time.Hour
	minInterval = 10 * time.Millisecond
	maxTimeout  = time.Hour
)

// order is an allocation as ordered, in the terms of the pure core and of the
// drivers.
type order struct {
	wire  *nusav1.AllocOrder
	alloc reconcile.Alloc
	tasks map[string]taskOrder
	// labels of the ports, by name.
	ports []driver.Port
}

// taskOrder is one task, ready for its driver but for the run and the lease.
type taskOrder struct {
	driver string
	task   driver.Task
	setup  setup.Task
	check  *check // nil = none
	// bad is why there is nothing to start; what another version has started can
	// be stopped.
	bad error
}

// newerThan compares orders of one allocation.
func newerThan(a, b *nusav1.AllocOrder) bool {
	return a.GetIncarnation() > b.GetIncarnation() ||
		a.GetIncarnation() == b.GetIncarnation() && a.GetIndex() > b.GetIndex()
}

// namedBy says whether an order names every task that was begun, with its driver:
// what it does not name nobody would stop.
func (a *alloc) namedBy(wire *nusav1.AllocOrder) bool {
	if bytes.Equal(wire.GetGroup(), a.wire.GetGroup()) {
		return true
	}
	var g nusav1.Group
	if proto.Unmarshal(wire.GetGroup(), &g) != nil {
		return false
	}
	for name := range a.act.Tasks {
		if t := g.GetTasks()[name]; t == nil || t.GetDriver() != a.tasks[name].driver {
			return false
		}
	}
	return !slices.ContainsFunc(slices.Collect(maps.Keys(g.GetTasks())), func(name string) bool { return !taskName.MatchString(name) })
}

// readOrder decodes an order. One that makes no sense is not an error of the
// stream: it becomes an allocation that is declined as unsupported.
func readOrder(wire *nusav1.AllocOrder, node node, forget bool) *order {
	o := &order{wire: wire, tasks: map[string]taskOrder{}}
	a := wire.GetAllocation()
	o.alloc = reconcile.Alloc{ID: a.GetId(), Batch: strings.EqualFold(strings.TrimPrefix(wire.GetJobType(), "JOB_TYPE_"), "batch")}
	switch {
	case forget:
		o.alloc.Want = reconcile.Forget
	case a.GetDesired() == nusav1.AllocDesired_ALLOC_DESIRED_STOP:
		o.alloc.Want = reconcile.Stop
	}
	if o.alloc.Want != reconcile.Run {
		o.alloc.WantReason, o.alloc.WantMessage = coreReason(a.GetReason()), a.GetMessage()
	}
	if err := o.readGroup(node); err != nil {
		o.alloc.Ask.Unsupported = err.Error()
	}
	return o
}

func (o *order) readGroup(node node) error {
	var g nusav1.Group
	if err := proto.Unmarshal(o.wire.GetGroup(), &g); err != nil {
		return fmt.Errorf("the order's group is not readable: %w", err)
	}
	a := o.wire.GetAllocation()
	if g.GetDisconnect().GetNode().GetRunning() == nusav1.Running_RUNNING_STOP || g.GetSingleton() {
		o.alloc.Lease = lease.Stop
	}
	o.alloc.MaxRuntime = g.GetMaxRuntime().AsDuration()
	bad := cmp.Or(o.readAsk(a, &g), checkVolumes(&g))
	if len(g.GetTasks()) == 0 {
		return fmt.Errorf("the group has no tasks")
	}
	for _, name := range slices.Sorted(maps.Keys(g.GetTasks())) {
		if !taskName.MatchString(name) {
			return fmt.Errorf("task %q: not a name", name)
		}
		t := g.GetTasks()[name]
		o.alloc.Tasks = append(o.alloc.Tasks, coreTask(name, t))
		o.alloc.Ask.Drivers = append(o.alloc.Ask.Drivers, t.GetDriver())
		to, err := o.readTask(name, t, &g, node)
		if err != nil {
			// It may run, started by another version: then it can be stopped.
			to = taskOrder{driver: t.GetDriver(), task: driver.Task{ID: driver.ID{Alloc: a.GetId(), Task: name}}, bad: err}
			bad = cmp.Or(bad, fmt.Errorf("task %s: %w", name, err))
		}
		o.tasks[name] = to
		if bad == nil && node.setup != nil && o.alloc.Want == reconcile.Run {
			if err := node.admit(to); err != nil {
				o.alloc.Ask.UnsupportedReason = declinedFor(err)
				bad = fmt.Errorf("task %s: %w", name, plainSetup(err))
			}
		}
	}
	return bad
}

// admit says what of a task this node lacks, or its operator does not allow.
func (n node) admit(to taskOrder) error {
	if err := n.setup.Admit(to.setup); err != nil {
		return err
	}
	if d, ok := n.reach.drivers[to.driver].(driver.Admitter); ok {
		return d.Admit(to.task)
	}
	return nil
}

// declinedFor is the reason of a task that cannot be made ready here.
func declinedFor(err error) reconcile.Reason {
	switch {
	case errors.Is(err, setup.ErrSecretMissing):
		return reconcile.ReasonSecretMissing
	case errors.Is(err, driver.ErrNotAllowed):
		return reconcile.ReasonNotAllowed
	}
	return ""
}

// plainSetup is the error without the words of package driver.
func plainSetup(err error) error {
	if e := (*setup.Error)(nil); errors.As(err, &e) {
		return fmt.Errorf("%s: %w", e.Field, e.Err)
	}
	return err
}

// checkVolumes: a volume's name becomes part of a path.
func checkVolumes(g *nusav1.Group) error {
	for _, name := range slices.Sorted(maps.Keys(g.GetVolumes())) {
		if !taskName.MatchString(name) {
			return fmt.Errorf("volumes: %q is not a name", name)
		}
	}
	return nil
}

// readAsk leaves out what makes no sense: it is not charged for.
func (o *order) readAsk(a *nusav1.Allocation, g *nusav1.Group) (bad error) {
	r := a.GetResources()
	o.alloc.Ask.CPUMilli, o.alloc.Ask.MemoryBytes, o.alloc.Ask.DiskBytes = r.GetCpuMilli(), r.GetMemoryBytes(), r.GetDiskBytes()
	if gpu := r.GetGpu(); gpu != nil {
		o.alloc.Ask.GPUMilli = int64(gpu.GetCount()) * 1000
		if gpu.GetCount() == 0 {
			o.alloc.Ask.GPUMilli = int64(gpu.GetShareMilli())
		}
	}
	for name, n := range map[string]*int64{"cpu": &o.alloc.Ask.CPUMilli, "memory": &o.alloc.Ask.MemoryBytes, "disk": &o.alloc.Ask.DiskBytes, "gpu": &o.alloc.Ask.GPUMilli} {
		if *n < 0 || *n > maxAsk {
			bad = fmt.Errorf("resources.%s: %d is not within 0..%d", name, *n, int64(maxAsk))
			*n = 0
		}
	}
	for _, label := range slices.Sorted(maps.Keys(a.GetPorts())) {
		p := driver.Port{Label: label, Host: int(a.GetPorts()[label]), To: int(g.GetPorts()[label].GetTo())}
		if p.To == 0 {
			p.To = p.Host
		}
		if !taskName.MatchString(label) || p.Host < 1 || p.Host > maxPort || p.To < 1 || p.To > maxPort {
			bad = fmt.Errorf("ports: %q on %d to %d: not a name and two ports", label, p.Host, p.To)
			continue
		}
		o.ports = append(o.ports, p)
		o.alloc.Ask.Ports = append(o.alloc.Ask.Ports, p.Host)
	}
	return bad
}

// within makes v fit.
func within[T cmp.Ordered](least, v, most T) T { return min(max(least, v), most) }

func coreTask(name string, t *nusav1.Task) reconcile.Task {
	out := reconcile.Task{Name: name, KillTimeout: defaultKillTimeout, Checked: t.GetCheck() != nil,
		Restart: reconcile.Restart{Attempts: defaultRestarts, Window: defaultRestartWindow, Delay: defaultRestartDelay}}
	if t.GetKillTimeout() != nil {
		out.KillTimeout = within(0, t.GetKillTimeout().AsDuration(), maxKill)
	}
	r := t.GetRestart()
	if r != nil && r.Attempts != nil {
		out.Restart.Attempts = within(0, int(r.GetAttempts()), maxRestarts)
	}
	if r.GetWindow() != nil {
		out.Restart.Window = max(time.Second, r.GetWindow().AsDuration())
	}
	if r.GetDelay() != nil {
		out.Restart.Delay = max(0, r.GetDelay().AsDuration())
	}
	return out
}

// readTask expands the variables. A field is honoured or refused, never ignored.
func (o *order) readTask(name string, t *nusav1.Task, g *nusav1.Group, node node) (taskOrder, error) {
	a := o.wire.GetAllocation()
	allocDir := filepath.Join(node.allocsDir, a.GetId())
	vars := variables(a, o.ports, name, allocDir, node)
	secrets := ""
	if len(t.GetSecrets()) > 0 {
		secrets = filepath.Join(allocDir, "secrets", name)
		vars["NUSA_SECRETS_DIR"] = driver.ContainerSecrets
		if t.GetDriver() == "process" {
			vars["NUSA_SECRETS_DIR"] = secrets
		}
	}
	env := maps.Clone(vars)
	if t.GetDriver() == "process" { // an image has a PATH of its own
		env["PATH"] = node.path
	}
	for k, v := range t.GetEnv() {
		expanded, err := expand(v, vars)
		if err != nil {
			return taskOrder{}, fmt.Errorf("env.%s: %w", k, err)
		}
		env[k] = expanded
	}
	config, err := expandAny(t.GetConfig().AsMap(), vars)
	if err != nil {
		return taskOrder{}, fmt.Errorf("config: %w", err)
	}
	to := taskOrder{driver: t.GetDriver(), task: driver.Task{
		ID:  driver.ID{Alloc: a.GetId(), Task: name},
		Env: env, Config: config.(map[string]any),
		Dir: filepath.Join(allocDir, "tasks", name), AllocDir: filepath.Join(allocDir, "shared"), SecretsDir: secrets,
		Resources: driver.Resources{CPUMilli: t.GetResources().GetCpuMilli(), MemoryBytes: t.GetResources().GetMemoryBytes(), DiskBytes: t.GetResources().GetDiskBytes()},
		Ports:     o.ports,
		Logs:      driver.LogBounds{Files: defaultLogFiles, SizeBytes: defaultLogBytes},
		StopGrace: coreTask(name, t).KillTimeout,
	}}
	if n := t.GetLogs().GetFiles(); n > 0 {
		to.task.Logs.Files = int(n)
	}
	if n := t.GetLogs().GetSizeBytes(); n > 0 {
		to.task.Logs.SizeBytes = n
	}
	for _, v := range slices.Sorted(maps.Keys(g.GetVolumes())) {
		vol := g.GetVolumes()[v]
		to.task.Volumes = append(to.task.Volumes, driver.Volume{Name: v, Source: vol.GetSource(), Target: vol.GetTarget(), ReadOnly: vol.GetReadOnly()})
	}
	if to.setup, err = readSetup(name, t, a, vars, node); err != nil {
		return to, err
	}
	to.setup.Volumes = to.task.Volumes
	to.check, err = o.readCheck(t, vars, node.reach)
	return to, err
}

// readSetup is what has to be made ready of a task.
func readSetup(name string, t *nusav1.Task, a *nusav1.Allocation, vars map[string]string, node node) (setup.Task, error) {
	out := setup.Task{Alloc: a.GetId(), Name: name, Namespace: a.GetNamespace(), Disk: t.GetResources().GetDiskBytes(),
		Secrets: t.GetSecrets(), User: t.GetConfig().GetFields()["user"].GetStringValue(), Contained: t.GetDriver() != "process"}
	if !out.Contained {
		out.User = cmp.Or(out.User, node.processUser)
	}
	for i, tmpl := range t.GetTemplates() {
		text, err := expand(tmpl.GetText(), vars)
		if err != nil {
			return out, fmt.Errorf("templates[%d]: %w", i, err)
		}
		mode, err := setup.Mode(tmpl.GetMode())
		if err != nil {
			return out, fmt.Errorf("templates[%d].mode: %w", i, err)
		}
		if !filepath.IsLocal(tmpl.GetTo()) {
			return out, fmt.Errorf("templates[%d].to: %q leaves the task's folder", i, tmpl.GetTo())
		}
		out.Templates = append(out.Templates, setup.Template{To: filepath.Clean(tmpl.GetTo()), Text: text, Mode: mode})
	}
	for i, f := range t.GetArtifacts() {
		source, err := expand(f.GetSource(), vars)
		if err != nil {
			return out, fmt.Errorf("artifacts[%d].source: %w", i, err)
		}
		mode, err := setup.Mode(f.GetMode())
		if err != nil {
			return out, fmt.Errorf("artifacts[%d].mode: %w", i, err)
		}
		if !filepath.IsLocal(f.GetTo()) {
			return out, fmt.Errorf("artifacts[%d].to: %q leaves the task's folder", i, f.GetTo())
		}
		out.Artifacts = append(out.Artifacts, setup.Artifact{Source: source, Checksum: f.GetChecksum(), To: f.GetTo(), Mode: mode})
	}
	return out, nil
}
