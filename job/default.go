package job

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// MaxSize bounds the file and the encoded message of a job, in bytes.
const MaxSize = 1 << 20

// DefaultNamespace is the namespace of a job that states none.
const DefaultNamespace = "default"

// DefaultPool is the node pool of a group that states none.
const DefaultPool = "default"

// Limits of a job. job.proto documents them.
const (
	MaxGroups      = 64
	MaxTasks       = 16
	MaxCount       = 100_000
	MaxConstraints = 32
	MaxAffinities  = 32
	MaxApart       = 8
	MaxLabels      = 64
	MaxPorts       = 64
	MaxVolumes     = 32
	MaxEnv         = 256
	MaxTemplates   = 32
	MaxArtifacts   = 32
	MaxSecrets     = 32
	MaxSelectors   = 64 // bounds each of regions.allow, prefer and near
	MaxColocations = 32
)

// Defaults of the fields of a job. job.proto documents them.
const (
	defaultPriority      = 50
	defaultPercentile    = 50
	defaultNearWeight    = 50
	defaultCount         = 1
	defaultCPUMilli      = 100
	defaultMemory        = 64 << 20
	defaultLogFiles      = 3
	defaultLogSize       = 10 << 20
	defaultKillTimeout   = 10 * time.Second
	defaultNodeAfter     = 30 * time.Second
	defaultRegionAfter   = 60 * time.Second
	defaultFailbackAfter = 10 * time.Minute
	defaultRestarts      = 3
	defaultRestartWindow = 10 * time.Minute
	defaultRestartDelay  = time.Second
	defaultReschedules   = 5
	defaultBackoffFrom   = 5 * time.Second
	defaultMemoryFactor  = 1.5
	defaultBackoffTo     = 10 * time.Minute
	defaultParallel      = 1
	defaultCheckInterval = 10 * time.Second
	defaultCheckTimeout  = 2 * time.Second
	defaultCheckDeadline = 5 * time.Minute
	defaultCheckFailures = 3
	defaultCatchUp       = time.Hour
	defaultBuffer        = 100
	defaultRunCount      = 20
	defaultRunAge        = 168 * time.Hour
	defaultPayloadFile   = "payload"
	defaultStepsAtOnce   = 100
	defaultItemsAtOnce   = 10
	defaultStepBackoff   = 10 * time.Second

	// The values of `update` that are not written into a spec, so that a spec from before these
	// fields existed stays as it is.
	defaultMinHealthy       = 10 * time.Second
	defaultFirstHealthy     = 2 * time.Second
	defaultHealthyDeadline  = 5 * time.Minute
	defaultProgressDeadline = 10 * time.Minute
)

// MinHealthy returns how long an instance of a group must be up before it counts as running. first:
// the instance is the first attempt of a job's first version.
func MinHealthy(g *nusav1.Group, first bool) time.Duration {
	switch d := g.GetUpdate().GetMinHealthy(); {
	case d != nil:
		return d.AsDuration()
	case first:
		return defaultFirstHealthy
	}
	return defaultMinHealthy
}

// Deadlines returns update.healthy_deadline and update.progress_deadline of a group.
func Deadlines(g *nusav1.Group) (healthy, progress time.Duration) {
	u := g.GetUpdate()
	healthy, progress = defaultHealthyDeadline, defaultProgressDeadline
	switch h, p := u.GetHealthyDeadline(), u.GetProgressDeadline(); {
	case h != nil && p != nil:
		healthy, progress = h.AsDuration(), p.AsDuration()
	case h != nil:
		healthy, progress = h.AsDuration(), max(progress, h.AsDuration())
	case p != nil:
		healthy, progress = min(healthy, p.AsDuration()), p.AsDuration()
	}
	return healthy, progress
}

// UpdateRegions returns how a new version of a job goes from region to region, and the first group that
// says so. It returns nil if none does.
func UpdateRegions(spec *nusav1.JobSpec) (of *nusav1.UpdateRegions, group string) {
	for name, g := range spec.GetGroups() {
		if r := g.GetUpdate().GetRegions(); r != nil && (of == nil || name < group) {
			of, group = r, name
		}
	}
	return of, group
}

// AutoRevert reports whether a job is taken back when a new version of a group fails.
func AutoRevert(g *nusav1.Group) bool {
	u := g.GetUpdate()
	return u.GetAutoRevert() || u.GetRegions().GetOnFailure() == nusav1.OnFailure_ON_FAILURE_REVERT
}

// Default sets, in place, every field that has a default and is absent. A second call
// changes nothing. Default also accepts specs that Validate refuses.
func Default(spec *nusav1.JobSpec) {
	or(&spec.Namespace, DefaultNamespace)
	if spec.Workflow != nil {
		or(&spec.Type, workflowType)
	}
	if IsTemplate(spec) {
		or(&spec.Type, nusav1.JobType_JOB_TYPE_BATCH)
	}
	or(&spec.Type, nusav1.JobType_JOB_TYPE_SERVICE)
	orPtr(&spec.Priority, defaultPriority)
	defaultRegions(spec.Regions)
	defaultRuns(spec)
	for _, g := range spec.Groups {
		if g != nil {
			defaultGroup(g, spec.Type)
		}
	}
}

// defaultRuns sets the defaults of a job that begins runs.
func defaultRuns(spec *nusav1.JobSpec) {
	if s := spec.Schedule; s != nil {
		or(&s.Overlap, nusav1.Overlap_OVERLAP_SKIP)
		if s.Overlap == nusav1.Overlap_OVERLAP_BUFFER_ALL {
			or(&s.Buffer, defaultBuffer)
		}
		orDuration(&s.CatchUp, defaultCatchUp)
		defaultRunHistory(&s.History)
	}
	if p := spec.Parameterized; p != nil {
		or(&p.Payload, nusav1.Payload_PAYLOAD_OPTIONAL)
		if p.Payload != nusav1.Payload_PAYLOAD_FORBIDDEN {
			or(&p.PayloadFile, defaultPayloadFile)
		}
		if spec.Workflow == nil {
			defaultRunHistory(&p.History)
		} else {
			takeMeta(p, spec.Workflow)
		}
	}
	if w := spec.Workflow; w != nil {
		defaultSteps(w)
		defaultRunHistory(&w.History)
	}
}

// defaultSteps sets the defaults of the steps of a workflow. Their groups get theirs when the steps run.
func defaultSteps(w *nusav1.Workflow) {
	or(&w.MaxParallel, defaultStepsAtOnce)
	for _, s := range w.Steps {
		if s.GetRetry() != nil {
			orDuration(&s.Retry.Backoff, defaultStepBackoff)
		}
		for _, of := range s.GetSemaphores() {
			if of != nil {
				or(&of.Units, 1)
			}
		}
		if s.GetForeach() != nil {
			or(&s.Foreach.MaxParallel, defaultItemsAtOnce)
		}
		if s.GetInline() != nil {
			defaultSteps(s.Inline)
		}
	}
}

func defaultRunHistory(field **nusav1.RunHistory) {
	h := orMessage(field)
	or(&h.Count, defaultRunCount)
	orDuration(&h.Age, defaultRunAge)
}

func defaultRegions(r *nusav1.RegionsSpec) {
	if r == nil {
		return
	}
	for _, n := range r.Near {
		if n == nil {
			continue
		}
		or(&n.Percentile, defaultPercentile)
		orPtr(&n.Weight, defaultNearWeight)
		if l := n.GetLocation(); l != nil {
			l.Latitude += 0 // -0 becomes 0: both mean the equator
			l.Longitude += 0
		}
		if n.Required {
			or(&n.Unknown, nusav1.Unknown_UNKNOWN_REFUSE)
		}
	}
}

func defaultGroup(g *nusav1.Group, kind nusav1.JobType) {
	if kind != nusav1.JobType_JOB_TYPE_SYSTEM {
		orPtr(&g.Count, defaultCount)
	}
	or(&g.Pool, DefaultPool)
	defaultRegions(g.Regions)
	defaultDisconnect(g)
	restarts := int32(defaultRestarts)
	if g.Retry != nil {
		restarts = 0
		defaultRetry(g.Retry)
	} else {
		r := orMessage(&g.Reschedule)
		orPtr(&r.Attempts, defaultReschedules)
		defaultBackoff(orMessage(&r.Backoff))
	}
	or(&orMessage(&g.Update).MaxParallel, defaultParallel)
	for _, t := range g.Tasks {
		if t != nil {
			defaultTask(t, restarts)
		}
	}
}

func defaultBackoff(b *nusav1.Backoff) {
	orDuration(&b.From, defaultBackoffFrom)
	orDuration(&b.To, max(defaultBackoffTo, b.From.AsDuration()))
}

func defaultRetry(r *nusav1.Retry) {
	orPtr(&r.Attempts, defaultReschedules)
	for _, rule := range r.Rules {
		if rule == nil {
			continue
		}
		or(&rule.Action, nusav1.RetryAction_RETRY_ACTION_RETRY)
		if rule.Action == nusav1.RetryAction_RETRY_ACTION_RETRY {
			defaultBackoff(orMessage(&rule.Backoff))
		}
		if rule.Memory != nil {
			or(&rule.Memory.Factor, defaultMemoryFactor)
		}
	}
}

// defaultDisconnect sets the defaults of `disconnect`. A singleton stops when contact is
// lost, because it could otherwise run twice. Other groups continue to run.
func defaultDisconnect(g *nusav1.Group) {
	running := nusav1.Running_RUNNING_KEEP
	if g.Singleton {
		running = nusav1.Running_RUNNING_STOP
	}
	d := orMessage(&g.Disconnect)
	or(&d.Reconcile, nusav1.Reconcile_RECONCILE_KEEP_ORIGINAL)
	for _, l := range []struct {
		level **nusav1.DisconnectLevel
		after time.Duration
	}{{&d.Node, defaultNodeAfter}, {&d.Region, defaultRegionAfter}} {
		level := orMessage(l.level)
		orDuration(&level.After, l.after)
		or(&level.Running, running)
		orPtr(&level.Replace, true)
	}
	if d.Region.GetReplace() {
		back := orMessage(&d.Region.Failback)
		or(&back.Mode, nusav1.FailbackMode_FAILBACK_MODE_REVIEW)
		orDuration(&back.After, defaultFailbackAfter)
	}
}

// defaultTask sets the defaults of a task. restarts is the default of restart.attempts: a group with
// `retry` decides about each failure itself.
func defaultTask(t *nusav1.Task, restarts int32) {
	res := orMessage(&t.Resources)
	or(&res.CpuMilli, defaultCPUMilli)
	or(&res.MemoryBytes, defaultMemory)
	logs := orMessage(&t.Logs)
	or(&logs.Files, defaultLogFiles)
	or(&logs.SizeBytes, defaultLogSize)
	orDuration(&t.KillTimeout, defaultKillTimeout)
	restart := orMessage(&t.Restart)
	orPtr(&restart.Attempts, restarts)
	orDuration(&restart.Window, defaultRestartWindow)
	orDuration(&restart.Delay, defaultRestartDelay)
	if c := t.Check; c != nil {
		orDuration(&c.Interval, defaultCheckInterval)
		orDuration(&c.Timeout, defaultCheckTimeout)
		orDuration(&c.HealthyDeadline, defaultCheckDeadline)
		or(&c.Failures, defaultCheckFailures)
	}
}

// or sets a field that is zero, which means that it is absent.
func or[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// orPtr sets an optional field that is absent.
func orPtr[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func orDuration(field **durationpb.Duration, value time.Duration) {
	if *field == nil {
		*field = durationpb.New(value)
	}
}

// orMessage returns the message of a field, and creates the message if it is absent.
func orMessage[T any, M interface {
	*T
	proto.Message
}](field *M) M {
	if *field == nil {
		*field = new(T)
	}
	return *field
}

// RegionsOf returns `regions` of a group, or else `regions` of the job. It never returns
// nil.
func RegionsOf(spec *nusav1.JobSpec, group string) *nusav1.RegionsSpec {
	if own := spec.GetGroups()[group].GetRegions(); own != nil {
		return own
	}
	if of := spec.GetRegions(); of != nil {
		return of
	}
	return &nusav1.RegionsSpec{}
}
