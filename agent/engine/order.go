package engine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/lease"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/agent/setup"
	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Defaults of optional fields of a job file. Package job has already set most of these
// fields.
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

// Names become parts of paths, so the agent checks their form again.
var (
	allocName = lazyregexp.New(`^[0-9a-zA-Z][0-9a-zA-Z-]{3,63}$`)
	taskName  = lazyregexp.New(`^[0-9a-zA-Z][0-9a-zA-Z_-]{0,62}$`)
)

// Bounds of the numbers in an order. The bounds of a job file are narrower. With these
// bounds the sum of MaxAllocs asks does not overflow.
const (
	maxAsk      = 1 << 48
	maxPort     = 65535
	maxKill     = 24 * time.Hour
	maxRestarts = 1000
	maxInterval = 24 * time.Hour
	minInterval = 10 * time.Millisecond
	maxTimeout  = time.Hour
	maxDelay    = 10 * time.Minute
)

// order is a decoded order of an allocation.
type order struct {
	wire *nusav1.AllocOrder
	// spec is the order in the form for package reconcile. tasks are the orders in the form
	// for the drivers.
	spec  reconcile.Alloc
	tasks map[string]taskOrder
	ports []driver.Port
}

// taskOrder is one task in the form for its driver. The start of a run sets the run number
// and the lease.
type taskOrder struct {
	driver string
	task   driver.Task
	setup  setup.Task
	check  *check // nil if the task has no check
	output bool   // the task may write an output: see setup.Output
	// bad says why the task cannot start. The task can still be stopped, because another
	// version of the order may have started a run.
	bad error
}

// newerThan reports whether a is a newer order of the same allocation than b.
func newerThan(a, b *nusav1.AllocOrder) bool {
	return a.GetIncarnation() > b.GetIncarnation() ||
		a.GetIncarnation() == b.GetIncarnation() && a.GetIndex() > b.GetIndex()
}

// readOrder decodes an order. An order that is not valid does not end the session: the
// engine declines its allocation as unsupported.
func readOrder(wire *nusav1.AllocOrder, node Node, forget bool) *order {
	o := &order{wire: wire, tasks: map[string]taskOrder{}}
	a := wire.GetAllocation()
	o.spec = reconcile.Alloc{ID: a.GetId(), Batch: strings.EqualFold(strings.TrimPrefix(wire.GetJobType(), "JOB_TYPE_"), "batch")}
	switch {
	case forget:
		o.spec.Want = reconcile.Forget
	case a.GetDesired() == nusav1.AllocDesired_ALLOC_DESIRED_STOP:
		o.spec.Want = reconcile.Stop
	}
	if o.spec.Want != reconcile.Run {
		o.spec.WantReason, o.spec.WantMessage = reasonFromProto(a.GetReason()), a.GetMessage()
	}
	if err := o.readGroup(node); err != nil {
		o.spec.Ask.Unsupported = err.Error()
	}
	return o
}

func (o *order) readGroup(node Node) error {
	var g nusav1.Group
	if err := proto.Unmarshal(o.wire.GetGroup(), &g); err != nil {
		return fmt.Errorf("the order's group cannot be decoded: %w", err)
	}
	a := o.wire.GetAllocation()
	o.spec.Binding = bindingOf(o.wire.GetBinding(), &g)
	o.spec.Ask.Fenced = o.spec.Binding != lease.None
	o.spec.Resized = o.wire.GetResized()
	o.spec.MaxRuntime = g.GetMaxRuntime().AsDuration()
	bad := cmp.Or(o.readAsk(a, &g), checkVolumes(&g))
	if len(g.GetTasks()) == 0 {
		return fmt.Errorf("the group has no tasks")
	}
	for _, name := range slices.Sorted(maps.Keys(g.GetTasks())) {
		if !taskName().MatchString(name) {
			return fmt.Errorf("task %q: the name is not valid", name)
		}
		t := g.GetTasks()[name]
		plan := taskFromProto(name, t)
		plan.Limits.MemoryBytes = memoryOf(a, &g, t)
		o.spec.Tasks = append(o.spec.Tasks, plan)
		o.spec.Ask.Drivers = append(o.spec.Ask.Drivers, t.GetDriver())
		to, err := o.readTask(name, t, &g, node)
		if err != nil {
			// Another version of the order may have started the task. Then the task can
			// still be stopped.
			to = taskOrder{driver: t.GetDriver(), task: driver.Task{ID: driver.ID{Alloc: a.GetId(), Task: name}}, bad: err}
			bad = cmp.Or(bad, fmt.Errorf("task %s: %w", name, err))
		}
		o.tasks[name] = to
		if bad == nil && node.Setup != nil && o.spec.Want == reconcile.Run {
			if err := node.admit(to); err != nil {
				o.spec.Ask.UnsupportedReason = declinedFor(err)
				bad = fmt.Errorf("task %s: %w", name, withoutSentinel(err))
			}
		}
	}
	return bad
}

// bindingOf returns which leases bind an allocation. A master of an earlier version does
// not set the field. Then the group's policy for a disconnected node decides.
func bindingOf(b nusav1.LeaseBinding, g *nusav1.Group) lease.Binding {
	switch b {
	case nusav1.LeaseBinding_LEASE_BINDING_NONE:
		return lease.None
	case nusav1.LeaseBinding_LEASE_BINDING_NODE:
		return lease.Node
	case nusav1.LeaseBinding_LEASE_BINDING_REGION:
		return lease.Region
	case nusav1.LeaseBinding_LEASE_BINDING_BOTH:
		return lease.Both
	}
	if g.GetDisconnect().GetNode().GetRunning() == nusav1.Running_RUNNING_STOP || g.GetSingleton() {
		return lease.Node
	}
	return lease.None
}

// admit returns why this node cannot run a task, or why its operator does not allow the task.
func (n Node) admit(to taskOrder) error {
	if err := n.Setup.Admit(to.setup); err != nil {
		return err
	}
	if d, ok := n.Reach.Drivers[to.driver].(driver.Admitter); ok {
		return d.Admit(to.task)
	}
	return nil
}

// declinedFor returns the reason for which this node declines a task, or "" if err has no
// reason of its own.
func declinedFor(err error) reconcile.Reason {
	switch {
	case errors.Is(err, setup.ErrSecretMissing):
		return reconcile.ReasonSecretMissing
	case errors.Is(err, driver.ErrNotAllowed):
		return reconcile.ReasonNotAllowed
	}
	return ""
}

// withoutSentinel returns a setup error without the text of its sentinel error.
func withoutSentinel(err error) error {
	if e := (*setup.Error)(nil); errors.As(err, &e) {
		return fmt.Errorf("%s: %w", e.Field, e.Err)
	}
	return err
}

// checkVolumes checks the names of volumes, which become parts of paths.
func checkVolumes(g *nusav1.Group) error {
	for _, name := range slices.Sorted(maps.Keys(g.GetVolumes())) {
		if !taskName().MatchString(name) {
			return fmt.Errorf("volumes: the name %q is not valid", name)
		}
	}
	return nil
}

// readAsk decodes the resources and the ports. A resource that is not valid counts as 0.
func (o *order) readAsk(a *nusav1.Allocation, g *nusav1.Group) (bad error) {
	r := a.GetResources()
	o.spec.Ask.CPUMilli, o.spec.Ask.MemoryBytes, o.spec.Ask.DiskBytes = r.GetCpuMilli(), r.GetMemoryBytes(), r.GetDiskBytes()
	if gpu := r.GetGpu(); gpu.GetCount() < 0 || gpu.GetShareMilli() < 0 || gpu.GetShareMilli() > reconcile.WholeGPU {
		bad = fmt.Errorf("resources.gpu: %d devices and %d thousandths of one: neither may be less than 0, and a share not more than %d", gpu.GetCount(), gpu.GetShareMilli(), reconcile.WholeGPU)
	}
	for _, g := range o.wire.GetGpus() {
		if g.GetShareMilli() < 1 || g.GetShareMilli() > reconcile.WholeGPU {
			bad = fmt.Errorf("resources.gpu: %d thousandths of accelerator %q: not within 1..%d", g.GetShareMilli(), g.GetDevice(), reconcile.WholeGPU)
			continue
		}
		o.spec.Ask.GPUs = append(o.spec.Ask.GPUs, reconcile.GPU{ID: g.GetDevice(), Milli: g.GetShareMilli()})
	}
	for name, n := range map[string]*int64{"cpu": &o.spec.Ask.CPUMilli, "memory": &o.spec.Ask.MemoryBytes, "disk": &o.spec.Ask.DiskBytes} {
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
		if !taskName().MatchString(label) || p.Host < 1 || p.Host > maxPort || p.To < 1 || p.To > maxPort {
			bad = fmt.Errorf("ports: %q from %d to %d: it must be a name and two ports within 1..65535", label, p.Host, p.To)
			continue
		}
		o.ports = append(o.ports, p)
		o.spec.Ask.Ports = append(o.spec.Ask.Ports, p.Host)
	}
	return bad
}

// giveGPUs gives a task the accelerators of its order. A task that asks for a part of an accelerator
// also gets the variables that say how much of it.
func (o *order) giveGPUs(to *taskOrder, ask *nusav1.GPU, node Node) error {
	if ask.GetCount() == 0 && ask.GetShareMilli() == 0 {
		return nil
	}
	part := ask.GetShareMilli() > 0 && ask.GetShareMilli() < reconcile.WholeGPU
	want := int(ask.GetCount())
	if ask.GetShareMilli() > 0 {
		want = 1
	}
	for _, g := range o.spec.Ask.GPUs {
		to.task.GPUs = append(to.task.GPUs, g.ID)
		if part != (g.Milli < reconcile.WholeGPU) {
			return fmt.Errorf("resources.gpu: the order gives %d thousandths of accelerator %q: not what the task asks for", g.Milli, g.ID)
		}
	}
	if len(to.task.GPUs) != want {
		return fmt.Errorf("resources.gpu: the task asks for %d devices, and the order names %d", want, len(to.task.GPUs))
	}
	if part {
		var memory int64
		if node.GPUMemory != nil {
			memory = node.GPUMemory(to.task.GPUs[0])
		}
		for k, v := range shareVariables(ask.GetShareMilli(), memory) {
			to.task.Env[k] = v
		}
	}
	return nil
}

// within returns v, or the nearest bound if v is outside of least..most.
func within[T cmp.Ordered](least, v, most T) T { return min(max(least, v), most) }

// taskFromProto converts a task and limits each number to its bounds.
func taskFromProto(name string, t *nusav1.Task) reconcile.Task {
	out := reconcile.Task{Name: name, KillTimeout: defaultKillTimeout, Checked: t.GetCheck() != nil,
		Restart: reconcile.Restart{Attempts: defaultRestarts, Window: defaultRestartWindow, Delay: defaultRestartDelay}}
	if t.GetKillTimeout() != nil {
		out.KillTimeout = within(0, t.GetKillTimeout().AsDuration(), maxKill)
	}
	out.Leader, out.ShutdownDelay = t.GetLeader(), within(0, t.GetShutdownDelay().AsDuration(), maxDelay)
	switch t.GetLifecycle().GetHook() {
	case nusav1.LifecycleHook_LIFECYCLE_HOOK_PRESTART:
		out.Hook, out.Sidecar = reconcile.Prestart, t.GetLifecycle().GetSidecar()
	case nusav1.LifecycleHook_LIFECYCLE_HOOK_POSTSTART:
		out.Hook, out.Sidecar = reconcile.Poststart, t.GetLifecycle().GetSidecar()
	case nusav1.LifecycleHook_LIFECYCLE_HOOK_POSTSTOP:
		out.Hook = reconcile.Poststop
	}
	res := t.GetResources()
	out.Limits = reconcile.Limits{CPUMilli: res.GetCpuMilli(), MemoryBytes: res.GetMemoryBytes(), DiskBytes: res.GetDiskBytes()}
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

// memoryOf returns the memory of a task. An attempt after a failure for lack of memory may have more than the task
// asks for: see RetryRule.memory. The allocation then has it, and the group has one task.
func memoryOf(a *nusav1.Allocation, g *nusav1.Group, t *nusav1.Task) int64 {
	own := t.GetResources().GetMemoryBytes()
	raises := func(r *nusav1.RetryRule) bool { return r.GetMemory() != nil }
	if len(g.GetTasks()) == 1 && slices.ContainsFunc(g.GetRetry().GetRules(), raises) {
		return max(own, a.GetResources().GetMemoryBytes())
	}
	return own
}

// readTask decodes a task and expands its variables. It uses each field or refuses the
// task.
func (o *order) readTask(name string, t *nusav1.Task, g *nusav1.Group, node Node) (taskOrder, error) {
	a := o.wire.GetAllocation()
	allocDir := filepath.Join(node.AllocsDir, a.GetId())
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
	if t.GetDriver() == "process" { // a container image has its own PATH
		env["PATH"] = node.Path
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
	to := taskOrder{driver: t.GetDriver(), output: vars["NUSA_OUTPUT"] != "", task: driver.Task{
		ID:  driver.ID{Alloc: a.GetId(), Task: name},
		Env: env, Config: config.(map[string]any),
		Dir: filepath.Join(allocDir, "tasks", name), AllocDir: filepath.Join(allocDir, "shared"), SecretsDir: secrets,
		Resources: driver.Resources{CPUMilli: t.GetResources().GetCpuMilli(), MemoryBytes: memoryOf(a, g, t), DiskBytes: t.GetResources().GetDiskBytes()},
		Ports:     o.ports,
		Logs:      driver.LogBounds{Files: defaultLogFiles, SizeBytes: defaultLogBytes},
		StopGrace: taskFromProto(name, t).KillTimeout,
	}}
	err = o.giveGPUs(&to, t.GetResources().GetGpu(), node)
	if err != nil {
		return to, err
	}
	if name := t.GetKillSignal(); name != "" {
		to.task.KillSignal = int(unix.SignalNum(name))
		if to.task.KillSignal == 0 {
			return to, fmt.Errorf("kill_signal: %q is not the name of a signal, such as SIGINT", name)
		}
	}
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
	to.setup, err = readSetup(name, t, a, vars, node)
	if err != nil {
		return to, err
	}
	to.setup.Volumes = to.task.Volumes
	to.check, err = o.readCheck(t, vars, node.Reach)
	return to, err
}

// readSetup decodes the templates, artifacts and secrets that must be prepared for a task.
func readSetup(name string, t *nusav1.Task, a *nusav1.Allocation, vars map[string]string, node Node) (setup.Task, error) {
	out := setup.Task{Alloc: a.GetId(), Name: name, Namespace: a.GetNamespace(), Disk: t.GetResources().GetDiskBytes(),
		Secrets: t.GetSecrets(), User: t.GetConfig().GetFields()["user"].GetStringValue(), Contained: t.GetDriver() != "process"}
	if !out.Contained {
		out.User = cmp.Or(out.User, node.ProcessUser)
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
