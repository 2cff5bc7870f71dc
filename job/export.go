package job

import (
	_ "embed"
	"strings"
	"text/template"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Export writes a stored spec as a short job file. The file leaves out the values that
// Default fills in, except namespace, type and counts, which a reader wants to see. A
// submit of the file changes nothing. Errors are those of Marshal.
func Export(spec *nusav1.JobSpec, format Format) ([]byte, error) {
	spec = proto.CloneOf(spec)
	undefault(spec)
	return Marshal(spec, format)
}

// undefault removes, in place, the values that Default fills in. An empty message that
// Default does not create stays. For example, an empty `regions` of a group replaces the
// `regions` of the job.
func undefault(spec *nusav1.JobSpec) {
	dropPtr(&spec.Priority, defaultPriority)
	undefaultRegions(spec.Regions)
	undefaultRuns(spec)
	for _, g := range spec.Groups {
		if g != nil {
			undefaultGroup(g)
		}
	}
}

func undefaultRuns(spec *nusav1.JobSpec) {
	if s := spec.Schedule; s != nil {
		drop(&s.Overlap, nusav1.Overlap_OVERLAP_SKIP)
		drop(&s.Buffer, defaultBuffer)
		dropDuration(&s.CatchUp, defaultCatchUp)
		undefaultRunHistory(&s.History)
	}
	if p := spec.Parameterized; p != nil {
		drop(&p.Payload, nusav1.Payload_PAYLOAD_OPTIONAL)
		drop(&p.PayloadFile, defaultPayloadFile)
		undefaultRunHistory(&p.History)
		if spec.Workflow != nil {
			leaveMeta(p, spec.Workflow)
		}
	}
	if w := spec.Workflow; w != nil {
		undefaultSteps(w)
		undefaultRunHistory(&w.History)
	}
}

func undefaultSteps(w *nusav1.Workflow) {
	drop(&w.MaxParallel, defaultStepsAtOnce)
	for _, s := range w.Steps {
		if s.GetRetry() != nil {
			dropDuration(&s.Retry.Backoff, defaultStepBackoff)
		}
		if s.GetForeach() != nil {
			drop(&s.Foreach.MaxParallel, defaultItemsAtOnce)
		}
		if s.GetInline() != nil {
			undefaultSteps(s.Inline)
		}
	}
}

func undefaultRunHistory(field **nusav1.RunHistory) {
	if h := *field; h != nil {
		drop(&h.Count, defaultRunCount)
		dropDuration(&h.Age, defaultRunAge)
	}
	dropEmpty(field)
}

func undefaultRegions(r *nusav1.RegionsSpec) {
	if r == nil {
		return
	}
	for _, n := range r.Near {
		if n == nil {
			continue
		}
		drop(&n.Percentile, defaultPercentile)
		dropPtr(&n.Weight, defaultNearWeight)
		if n.Required {
			drop(&n.Unknown, nusav1.Unknown_UNKNOWN_REFUSE)
		}
	}
}

func undefaultGroup(g *nusav1.Group) {
	drop(&g.Pool, DefaultPool)
	undefaultRegions(g.Regions)
	undefaultDisconnect(g)
	if r := g.Reschedule; r != nil {
		dropPtr(&r.Attempts, defaultReschedules)
		undefaultBackoff(&r.Backoff)
	}
	dropEmpty(&g.Reschedule)
	restarts := int32(defaultRestarts)
	if g.Retry != nil {
		restarts = 0
		undefaultRetry(g.Retry)
	}
	if u := g.Update; u != nil {
		drop(&u.MaxParallel, defaultParallel)
	}
	dropEmpty(&g.Update)
	for _, t := range g.Tasks {
		if t != nil {
			undefaultTask(t, restarts)
		}
	}
}

func undefaultDisconnect(g *nusav1.Group) {
	d := g.Disconnect
	if d == nil {
		return
	}
	running := nusav1.Running_RUNNING_KEEP
	if g.Singleton {
		running = nusav1.Running_RUNNING_STOP
	}
	drop(&d.Reconcile, nusav1.Reconcile_RECONCILE_KEEP_ORIGINAL)
	if r := d.Region; r != nil && r.Failback != nil {
		drop(&r.Failback.Mode, nusav1.FailbackMode_FAILBACK_MODE_REVIEW)
		dropDuration(&r.Failback.After, defaultFailbackAfter)
		dropEmpty(&r.Failback)
	}
	for _, l := range []struct {
		level **nusav1.DisconnectLevel
		after time.Duration
	}{{&d.Node, defaultNodeAfter}, {&d.Region, defaultRegionAfter}} {
		if *l.level == nil {
			continue
		}
		dropDuration(&(*l.level).After, l.after)
		drop(&(*l.level).Running, running)
		dropPtr(&(*l.level).Replace, true)
		dropEmpty(l.level)
	}
	dropEmpty(&g.Disconnect)
}

func undefaultBackoff(field **nusav1.Backoff) {
	if b := *field; b != nil {
		// The default of To depends on From, so To comes first.
		dropDuration(&b.To, max(defaultBackoffTo, b.From.AsDuration()))
		dropDuration(&b.From, defaultBackoffFrom)
	}
	dropEmpty(field)
}

func undefaultRetry(r *nusav1.Retry) {
	dropPtr(&r.Attempts, defaultReschedules)
	for _, rule := range r.Rules {
		if rule != nil {
			drop(&rule.Action, nusav1.RetryAction_RETRY_ACTION_RETRY)
			undefaultBackoff(&rule.Backoff)
			if rule.Memory != nil {
				drop(&rule.Memory.Factor, defaultMemoryFactor)
			}
		}
	}
}

func undefaultTask(t *nusav1.Task, restarts int32) {
	if r := t.Resources; r != nil {
		drop(&r.CpuMilli, defaultCPUMilli)
		drop(&r.MemoryBytes, defaultMemory)
	}
	dropEmpty(&t.Resources)
	if l := t.Logs; l != nil {
		drop(&l.Files, defaultLogFiles)
		drop(&l.SizeBytes, defaultLogSize)
	}
	dropEmpty(&t.Logs)
	dropDuration(&t.KillTimeout, defaultKillTimeout)
	if r := t.Restart; r != nil {
		dropPtr(&r.Attempts, restarts)
		dropDuration(&r.Window, defaultRestartWindow)
		dropDuration(&r.Delay, defaultRestartDelay)
	}
	dropEmpty(&t.Restart)
	if c := t.Check; c != nil {
		dropDuration(&c.Interval, defaultCheckInterval)
		dropDuration(&c.Timeout, defaultCheckTimeout)
		dropDuration(&c.HealthyDeadline, defaultCheckDeadline)
		drop(&c.Failures, defaultCheckFailures)
	}
}

// drop is the opposite of or.
func drop[T comparable](field *T, value T) {
	if *field == value {
		var zero T
		*field = zero
	}
}

// dropPtr is the opposite of orPtr.
func dropPtr[T comparable](field **T, value T) {
	if *field != nil && **field == value {
		*field = nil
	}
}

// dropDuration is the opposite of orDuration.
func dropDuration(field **durationpb.Duration, value time.Duration) {
	if proto.Equal(*field, durationpb.New(value)) {
		*field = nil
	}
}

// dropEmpty is the opposite of orMessage.
func dropEmpty[T any, M interface {
	*T
	proto.Message
}](field *M) {
	if *field != nil && proto.Size(*field) == 0 {
		*field = nil
	}
}

//go:embed sample.yaml.tmpl
var sampleText string

// Sample returns a commented job file to start from. The name must be valid.
func Sample(name string, kind nusav1.JobType) (string, error) {
	funcs := template.FuncMap{
		// pad aligns the comment after the type.
		"pad": func(s string) string { return strings.Repeat(" ", max(1, 21-len(s))) },
	}
	t, err := template.New("job").Funcs(funcs).Parse(sampleText)
	if err != nil {
		return "", err
	}
	typeName := enumName(kind.Descriptor().Values().ByNumber(kind.Number()))
	if typeName == "" {
		typeName = "service"
	}
	var b strings.Builder
	err = t.Execute(&b, struct{ Name, Type string }{name, typeName})
	return b.String(), err
}

// ParseType reads a job type in the form of job files that Sample knows. It returns false for another text.
func ParseType(s string) (nusav1.JobType, bool) {
	values := nusav1.JobType(0).Descriptor().Values()
	for i := range values.Len() {
		if name := enumName(values.Get(i)); name != "" && name == s && values.Get(i).Number() != workflowType.Number() {
			return nusav1.JobType(values.Get(i).Number()), true
		}
	}
	return 0, false
}
