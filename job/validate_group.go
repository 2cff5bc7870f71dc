package job

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/expr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func (c *checker) group(p, key string, g *nusav1.Group, spec *nusav1.JobSpec) {
	g = present(g)
	c.key(p, key)
	c.instances(p, g, spec)
	c.expressions(p, g)
	if g.GetPool() != "" {
		c.name(c.join(p, "pool"), g.GetPool())
	}
	c.regions(c.join(p, "regions"), g.GetRegions())
	checkDisconnect(c, c.join(p, "disconnect"), g)
	c.ports(c.join(p, "ports"), g.GetPorts())
	checkServices(c, c.join(p, "services"), g)
	c.volumes(c.join(p, "volumes"), g.GetVolumes())
	c.duration(c.join(p, "max_runtime"), g.GetMaxRuntime(), 0, maxDuration)
	if r := g.GetReschedule(); r != nil {
		at := c.join(p, "reschedule")
		if r.Attempts != nil {
			c.number(c.join(at, "attempts"), r.GetAttempts(), 0, maxAttempts)
		}
		c.backoff(c.join(at, "backoff"), r.GetBackoff())
	}
	checkRetry(c, c.join(p, "retry"), g, spec.GetType())
	c.update(c.join(p, "update"), g, spec.GetType())
	if len(g.GetTasks()) == 0 {
		c.fail(c.join(p, "tasks"), "is missing: a group has at least one task")
	}
	c.count(c.join(p, "tasks"), len(g.GetTasks()), MaxTasks, "tasks")
	for _, k := range sorted(g.GetTasks()) {
		c.task(c.join(c.join(p, "tasks"), k), k, g.GetTasks()[k], g, spec)
	}
	c.order(c.join(p, "tasks"), g)
}

// backoff validates a pause that doubles.
func (c *checker) backoff(p string, b *nusav1.Backoff) {
	c.duration(c.join(p, "from"), b.GetFrom(), 0, maxDuration)
	c.duration(c.join(p, "to"), b.GetTo(), 0, maxDuration)
	from, to := b.GetFrom(), b.GetTo()
	if from != nil && to != nil && from.AsDuration() > to.AsDuration() {
		c.fail(c.join(p, "from"), "%s is more than to, %s", FormatDuration(from.AsDuration()), FormatDuration(to.AsDuration()))
	}
}

// instances validates the number of instances, also against the number of their regions.
func (c *checker) instances(p string, g *nusav1.Group, spec *nusav1.JobSpec) {
	system := spec.GetType() == nusav1.JobType_JOB_TYPE_SYSTEM
	if g.GetParallel() != 0 && spec.GetType() != nusav1.JobType_JOB_TYPE_BATCH {
		c.fail(c.join(p, "parallel"), "only for batch jobs: the instances of other jobs run at the same time")
	} else {
		c.number(c.join(p, "parallel"), g.GetParallel(), 0, MaxCount)
	}
	switch {
	case system && g.Count != nil:
		c.fail(c.join(p, "count"), "a system job has one instance on every fitting node: leave count out")
	case g.Count != nil:
		c.number(c.join(p, "count"), g.GetCount(), 0, MaxCount)
	}
	if system && g.GetSingleton() {
		c.fail(c.join(p, "singleton"), "a system job runs on every fitting node: leave singleton out, or make the job a service")
	}
	if least := g.GetRegions().GetSpread().GetMin(); !system && least > instances(g) && instances(g) > 0 {
		c.fail(c.under(p, ".regions.spread.min"), "more regions, %d, than instances, %d", least, instances(g))
	}
}

// spreads validates regions.spread of the job. A group with fewer instances than
// spread.min puts each instance in its own region, but at least one group must have enough
// instances.
func (c *checker) spreads(spec *nusav1.JobSpec) {
	least, most := spec.GetRegions().GetSpread().GetMin(), int32(0)
	for _, g := range spec.GetGroups() {
		if g.GetRegions() == nil {
			most = max(most, instances(g))
		}
	}
	if least > most && most > 0 && spec.GetType() != nusav1.JobType_JOB_TYPE_SYSTEM {
		c.fail("regions.spread.min", "more regions, %d, than instances in any group, %d", least, most)
	}
}

func instances(g *nusav1.Group) int32 {
	if g == nil || g.Count == nil {
		return defaultCount
	}
	return g.GetCount()
}

func (c *checker) expressions(p string, g *nusav1.Group) {
	at := c.join(p, "constraints")
	c.count(at, len(g.GetConstraints()), MaxConstraints, "constraints")
	for i, s := range g.GetConstraints()[:min(len(g.GetConstraints()), MaxConstraints)] {
		c.expression(fmt.Sprintf("%s[%d]", at, i), expr.Bool, s)
	}
	at = c.join(p, "affinities")
	c.count(at, len(g.GetAffinities()), MaxAffinities, "affinities")
	for i, a := range g.GetAffinities()[:min(len(g.GetAffinities()), MaxAffinities)] {
		item := fmt.Sprintf("%s[%d]", at, i)
		c.expression(c.join(item, "expression"), expr.Bool, a.GetExpression())
		c.weight(c.join(item, "weight"), a.GetWeight())
	}
	at = c.join(p, "apart")
	c.count(at, len(g.GetApart()), MaxApart, "tags")
	for i, tag := range g.GetApart()[:min(len(g.GetApart()), MaxApart)] {
		c.name(fmt.Sprintf("%s[%d]", at, i), tag)
	}
	if g.GetSpread() != nil {
		c.expression(c.under(p, ".spread.by"), expr.String, g.GetSpread().GetBy())
	}
}

func (c *checker) expression(p string, kind expr.Kind, source string) {
	if _, err := expr.Compile(kind, source); err != nil {
		c.fail(p, "%v", err)
	}
}

func (c *checker) ports(p string, ports map[string]*nusav1.Port) {
	c.count(p, len(ports), MaxPorts, "ports")
	owner := map[int32]string{}
	for _, k := range sorted(ports) {
		at := c.join(p, k)
		if !label().MatchString(k) {
			c.fail(at, "not a port's name: 1 to 63 of letters, digits and _, starting with a letter")
		}
		c.number(c.join(at, "to"), ports[k].GetTo(), 0, 65535)
		static := ports[k].GetStatic()
		c.number(c.join(at, "static"), static, 0, 65535)
		if other, taken := owner[static]; taken && static != 0 {
			c.fail(c.join(at, "static"), "%d is the port of %s too", static, other)
		}
		owner[static] = k
	}
}

func (c *checker) volumes(p string, volumes map[string]*nusav1.Volume) {
	c.count(p, len(volumes), MaxVolumes, "volumes")
	for _, k := range sorted(volumes) {
		at, v := c.join(p, k), volumes[k]
		c.key(at, k)
		if !path.IsAbs(v.GetSource()) || path.Clean(v.GetSource()) != v.GetSource() {
			c.fail(c.join(at, "source"), "%q is not a clean absolute path of the host", clip(v.GetSource()))
		}
		c.text(c.join(at, "source"), v.GetSource(), 4096)
		if v.GetTarget() != "" && path.Clean(v.GetTarget()) != v.GetTarget() {
			c.fail(c.join(at, "target"), "%q is not a clean path", clip(v.GetTarget()))
		}
		c.text(c.join(at, "target"), v.GetTarget(), 4096)
	}
}

func (c *checker) task(p, key string, t *nusav1.Task, g *nusav1.Group, spec *nusav1.JobSpec) {
	t = present(t)
	c.key(p, key)
	c.name(c.join(p, "driver"), t.GetDriver())
	checkConfig(c, c.join(p, "config"), t, g)
	c.resources(c.join(p, "resources"), t.GetResources())
	c.env(c.join(p, "env"), t.GetEnv())
	c.files(p, t)
	checkReferences(c, p, t, g, RunVariables(spec))
	checkHealth(c, c.join(p, "check"), t, g, spec.GetType())
	if l := t.GetLogs(); l != nil {
		if l.GetFiles() != 0 {
			c.number(c.under(p, ".logs.files"), l.GetFiles(), 1, 100)
		}
		if l.GetSizeBytes() != 0 {
			between(c, c.under(p, ".logs.size"), l.GetSizeBytes(), minLogSize, maxLogSize, FormatBytes)
		}
	}
	c.killTimeout(c.join(p, "kill_timeout"), t, g)
	c.lifecycle(p, t, g)
	if r := t.GetRestart(); r != nil {
		at := c.join(p, "restart")
		if r.Attempts != nil {
			c.number(c.join(at, "attempts"), r.GetAttempts(), 0, maxAttempts)
		}
		c.duration(c.join(at, "window"), r.GetWindow(), time.Second, maxDuration)
		c.duration(c.join(at, "delay"), r.GetDelay(), 0, maxDuration)
	}
}

// killTimeout validates kill_timeout. A server that recovers from an old copy of its data grants no
// lease until everything has ended that an earlier lease bound, so one such task delays all jobs.
func (c *checker) killTimeout(at string, t *nusav1.Task, g *nusav1.Group) {
	if v, ok := goDuration(t.GetKillTimeout()); ok && bound(g) && v > maxBoundKill && v <= maxKill {
		c.fail(at, "%s is too long with %s: other places wait for that time before they start the instance; give at most %s",
			FormatDuration(v), bindingSetting(g), FormatDuration(maxBoundKill))
		return
	}
	c.duration(at, t.GetKillTimeout(), 0, maxKill)
}

func (c *checker) resources(p string, r *nusav1.Resources) {
	if r == nil {
		return
	}
	between(c, c.join(p, "cpu"), r.GetCpuMilli(), 0, maxCPU, FormatCPU)
	memory := c.join(p, "memory")
	switch m := r.GetMemoryBytes(); {
	case m > 0 && m < minMemory:
		c.fail(memory, "%d bytes is less than 1MiB, the least: was a unit meant, as in %dMiB?", m, m)
	default:
		between(c, memory, m, 0, maxMemory, FormatBytes)
	}
	between(c, c.join(p, "disk"), r.GetDiskBytes(), 0, maxDisk, FormatBytes)
	g := r.GetGpu()
	if g == nil {
		return
	}
	at := c.join(p, "gpu")
	c.number(c.join(at, "count"), g.GetCount(), 0, maxGPUs)
	between(c, c.join(at, "share"), g.GetShareMilli(), 0, 1000, integer[int32])
	if g.GetCount() > 1 && g.GetShareMilli() > 0 && g.GetShareMilli() < 1000 {
		c.fail(c.join(at, "share"), "a part of a device is asked for with count 0 or 1, not %d", g.GetCount())
	}
	c.count(c.join(at, "model"), len(g.GetModels()), MaxSelectors, "models")
	for i, m := range g.GetModels() {
		c.text(fmt.Sprintf("%s.model[%d]", at, i), m, 128)
	}
}

// argument validates an argument of a process, or a variable whose name takes some bytes.
func (c *checker) argument(at, text string, name int) {
	if size := name + len(text); size > maxArgument {
		c.fail(at, tooLong, size, maxArgument)
		return
	}
	c.text(at, text, maxArgument)
}

func (c *checker) env(p string, env map[string]string) {
	c.count(p, len(env), MaxEnv, "variables")
	for _, k := range sorted(env) {
		at := c.join(p, k)
		switch {
		case !variable().MatchString(k):
			c.fail(at, "not a variable's name: letters, digits and _, not starting with a digit")
		case strings.HasPrefix(k, "NUSA_"):
			c.fail(at, "names that start with NUSA_ are set by the agent")
		}
		c.argument(at, env[k], len(k)+len("="))
	}
}

// maxShutdownDelay bounds shutdown_delay.
const maxShutdownDelay = 10 * time.Minute

// killSignals are the values of kill_signal.
var killSignals = []string{"SIGABRT", "SIGALRM", "SIGCONT", "SIGHUP", "SIGINT", "SIGKILL", "SIGPIPE", "SIGPWR", "SIGQUIT", "SIGTERM",
	"SIGUSR1", "SIGUSR2", "SIGWINCH"}

// lifecycle validates when a task runs and how it is asked to end.
func (c *checker) lifecycle(p string, t *nusav1.Task, g *nusav1.Group) {
	if name := t.GetKillSignal(); name != "" && !slices.Contains(killSignals, name) {
		c.fail(c.join(p, "kill_signal"), "%q is not one of %s", clip(name), strings.Join(killSignals, ", "))
	}
	c.duration(c.join(p, "shutdown_delay"), t.GetShutdownDelay(), 0, maxShutdownDelay)
	if t.GetLeader() && t.GetLifecycle() != nil {
		c.fail(c.join(p, "leader"), "a task with a lifecycle cannot lead: the leader is a main task")
	}
	l := t.GetLifecycle()
	if l == nil {
		return
	}
	at := c.join(p, "lifecycle")
	hook := l.GetHook()
	switch {
	case hook == nusav1.LifecycleHook_LIFECYCLE_HOOK_UNSPECIFIED:
		c.fail(c.join(at, "hook"), "is missing: prestart, poststart or poststop")
		return
	case hook == nusav1.LifecycleHook_LIFECYCLE_HOOK_POSTSTOP && l.GetSidecar():
		c.fail(c.join(at, "sidecar"), "a poststop task ends by itself: leave sidecar out")
	case hook == nusav1.LifecycleHook_LIFECYCLE_HOOK_POSTSTOP && bound(g):
		c.fail(c.join(at, "hook"), "poststop is not possible with %s: when the lease has ended nothing may run here", bindingSetting(g))
	}
	if t.GetCheck() != nil && !l.GetSidecar() {
		c.fail(c.join(p, "check"), "a task that ends by itself has no check: its exit code is its result")
	}
	if !l.GetSidecar() && t.GetShutdownDelay().AsDuration() > 0 {
		c.fail(c.join(p, "shutdown_delay"), "nobody calls a task that ends by itself: leave it out")
	}
}

// order validates which tasks of a group lead and which follow.
func (c *checker) order(p string, g *nusav1.Group) {
	leader, main, gpus := "", false, ""
	for _, k := range sorted(g.GetTasks()) {
		t := g.GetTasks()[k]
		if d := t.GetResources().GetGpu(); d.GetCount() > 0 || d.GetShareMilli() > 0 {
			if gpus != "" {
				c.fail(c.under(c.join(p, k), ".resources.gpu"), "%s has the accelerators of the instance already: one task of a group can have them", gpus)
			}
			gpus = k
		}
		main = main || t.GetLifecycle() == nil
		if t.GetLeader() && leader != "" {
			c.fail(c.join(c.join(p, k), "leader"), "%s leads already", leader)
		}
		if t.GetLeader() {
			leader = k
		}
	}
	if !main && len(g.GetTasks()) > 0 {
		c.fail(p, "no main task: at least one task has no lifecycle")
	}
}

const (
	// maxMinHealthy is the greatest update.min_healthy.
	maxMinHealthy = time.Hour
	// maxCanary is the greatest update.canary.
	maxCanary = 100
	// maxProgress is the greatest update.progress_deadline, and the greatest pause between two regions.
	maxProgress = 7 * 24 * time.Hour
	// maxStagger is the greatest update.stagger.
	maxStagger = 24 * time.Hour
	// maxRegionsAtOnce and maxRegionOrder bound update.regions.
	maxRegionsAtOnce, maxRegionOrder = 100, 100
)

// update validates how a new version replaces the old one.
func (c *checker) update(at string, g *nusav1.Group, kind nusav1.JobType) {
	u := g.GetUpdate()
	if u == nil {
		return
	}
	c.number(c.join(at, "max_parallel"), u.GetMaxParallel(), 0, MaxCount)
	c.number(c.join(at, "canary"), u.GetCanary(), 0, maxCanary)
	if u.GetCanary() > 0 && kind != nusav1.JobType_JOB_TYPE_UNSPECIFIED && kind != nusav1.JobType_JOB_TYPE_SERVICE {
		c.fail(c.join(at, "canary"), "only a service has canaries: leave it out")
	}
	if u.GetAutoPromote() && u.GetCanary() == 0 {
		c.fail(c.join(at, "auto_promote"), "there is no canary to promote: set canary, or leave it out")
	}
	c.duration(c.join(at, "min_healthy"), u.GetMinHealthy(), 0, maxMinHealthy)
	c.duration(c.join(at, "healthy_deadline"), u.GetHealthyDeadline(), time.Second, 24*time.Hour)
	c.duration(c.join(at, "progress_deadline"), u.GetProgressDeadline(), time.Second, maxProgress)
	c.duration(c.join(at, "stagger"), u.GetStagger(), 0, maxStagger)
	c.updateRegions(c.join(at, "regions"), u)
	if kind == nusav1.JobType_JOB_TYPE_BATCH {
		for _, f := range []struct {
			name string
			set  bool
		}{
			{"min_healthy", u.GetMinHealthy() != nil},
			{"healthy_deadline", u.GetHealthyDeadline() != nil},
			{"progress_deadline", u.GetProgressDeadline() != nil},
			{"stagger", u.GetStagger() != nil},
			{"regions", u.GetRegions() != nil},
		} {
			if f.set {
				c.fail(c.join(at, f.name), "a batch job is not rolled out: leave it out, or make the job a service")
			}
		}
		return
	}
	healthy, progress := Deadlines(g)
	if least := MinHealthy(g, false); least >= healthy {
		c.fail(c.join(at, "healthy_deadline"), "%s is not more than min_healthy, %s: no instance could become healthy in time",
			FormatDuration(healthy), FormatDuration(least))
	}
	if progress < healthy {
		c.fail(c.join(at, "progress_deadline"), "%s is less than healthy_deadline, %s", FormatDuration(progress), FormatDuration(healthy))
	}
	if d := u.GetStagger().AsDuration(); d > 0 && d >= progress {
		c.fail(c.join(at, "stagger"), "%s is not less than progress_deadline, %s: the rollout would fail while it waits", FormatDuration(d), FormatDuration(progress))
	}
}

// updateRegions validates how a new version goes from region to region.
func (c *checker) updateRegions(at string, u *nusav1.Update) {
	r := u.GetRegions()
	if r == nil {
		return
	}
	c.number(c.join(at, "max_parallel"), r.GetMaxParallel(), 0, maxRegionsAtOnce)
	c.count(c.join(at, "order"), len(r.GetOrder()), maxRegionOrder, "regions")
	for i, name := range r.GetOrder() {
		c.name(fmt.Sprintf("%s[%d]", c.join(at, "order"), i), name)
		if before := slices.Index(r.GetOrder()[:i], name); before >= 0 {
			c.fail(fmt.Sprintf("%s[%d]", c.join(at, "order"), i), "%s is listed twice", clip(name))
		}
	}
	c.known(c.join(at, "on_failure"), r.GetOnFailure())
	if then := r.GetOnFailure(); u.GetAutoRevert() && then != nusav1.OnFailure_ON_FAILURE_UNSPECIFIED && then != nusav1.OnFailure_ON_FAILURE_REVERT {
		c.fail(c.join(at, "on_failure"), "auto_revert takes a failed version back: write on_failure: revert, or leave auto_revert out")
	}
	c.duration(c.join(at, "pause_between"), r.GetPauseBetween(), 0, maxProgress)
}

// updateOrder refuses groups whose versions go from region to region in different ways.
func (c *checker) updateOrder(spec *nusav1.JobSpec) {
	of, first := UpdateRegions(spec)
	for _, k := range sorted(spec.GetGroups()) {
		u := spec.GetGroups()[k].GetUpdate()
		at := c.under(c.join("groups", k), ".update.regions")
		if u.GetRegions() != nil && !proto.Equal(u.GetRegions(), of) {
			c.fail(at, "differs from that of group %s: a region gets a version with all groups at once, so write the same, or leave one out", first)
		}
		if of.GetOnFailure() != nusav1.OnFailure_ON_FAILURE_UNSPECIFIED && of.GetOnFailure() != nusav1.OnFailure_ON_FAILURE_REVERT && u.GetRegions() == nil && u.GetAutoRevert() {
			c.fail(c.under(c.join("groups", k), ".update.auto_revert"), "group %s has another on_failure: leave auto_revert out, or write on_failure: revert", first)
		}
	}
}
