package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/agent/driver"
	"github.com/nusa-scheduler/nusa/agent/health"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// probe runs a check once, within its context. saw describes the result for people. err is
// not nil if the check failed.
type probe func(ctx context.Context, id driver.ID) (saw string, err error)

// check is the check of a task, with its probe.
type check struct {
	health.Policy
	command bool
	probe   probe
}

// run runs the probe within the time-out. The time-out begins when the probe begins, not
// when the probe was due.
func (k *check) run(ctx context.Context, id driver.ID, due time.Time) health.Result {
	began := time.Now()
	r := health.Result{Began: began, Late: max(0, began.Sub(due))}
	ctx, cancel := context.WithTimeout(ctx, k.Timeout)
	defer cancel()
	var woke atomic.Int64 // the delay between began and the moment at which the prober noticed the time-out
	stop := context.AfterFunc(ctx, func() { woke.Store(int64(time.Since(began))) })
	saw, err := k.probe(ctx, id)
	stop()
	r.OK = err == nil
	if !r.OK {
		saw = err.Error()
		r.Overslept = max(0, time.Duration(woke.Load())-k.Timeout)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			saw = "no answer within " + k.Timeout.String()
			if k.command {
				saw = "did not end within " + k.Timeout.String()
			}
		}
	}
	r.Message = health.Clean(saw)
	return r
}

// readCheck decodes the check of a task. It returns nil if the task has no check.
func (o *order) readCheck(t *nusav1.Task, vars map[string]string, n Reach) (*check, error) {
	k := t.GetCheck()
	if k == nil {
		return nil, nil
	}
	if o.spec.Batch {
		return nil, errors.New("check: a batch job cannot have one; remove it or make the job a service")
	}
	out := &check{Policy: policyFromProto(k)}
	switch kind := k.GetKind().(type) {
	case *nusav1.Check_Http:
		if err := o.readHTTPCheck(out, kind.Http, t.GetDriver(), n); err != nil {
			return nil, err
		}
	case *nusav1.Check_Tcp:
		p, err := o.checkedPort(kind.Tcp.GetPort())
		if err != nil {
			return nil, err
		}
		out.What = fmt.Sprintf("tcp :%d", p)
		out.probe = func(ctx context.Context, _ driver.ID) (string, error) { return n.connect(ctx, t.GetDriver(), p) }
	case *nusav1.Check_Command:
		command := make([]string, len(kind.Command.GetCommand()))
		for i, w := range kind.Command.GetCommand() {
			var err error
			if command[i], err = expand(w, vars); err != nil {
				return nil, fmt.Errorf("check.command[%d]: %w", i, err)
			}
		}
		if len(command) == 0 {
			return nil, errors.New("check.command: is empty")
		}
		out.command = true
		out.What = health.Clean("command " + strings.Join(command, " "))
		out.probe = func(ctx context.Context, id driver.ID) (string, error) {
			return n.command(ctx, t.GetDriver(), id, command)
		}
	default:
		return nil, errors.New("check: this version of the agent does not know its kind")
	}
	return out, nil
}

func (o *order) readHTTPCheck(out *check, k *nusav1.HTTPCheck, driverName string, n Reach) error {
	p, err := o.checkedPort(k.GetPort())
	if err != nil {
		return err
	}
	path := cmp.Or(k.GetPath(), "/")
	req, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(p)+path, nil)
	if err != nil {
		return fmt.Errorf("check.http.path: %w", err)
	}
	req.Close = true
	req.Header.Set("User-Agent", "nusa-check")
	out.What = fmt.Sprintf("http :%d%s", p, path)
	out.probe = func(ctx context.Context, _ driver.ID) (string, error) { return n.getHTTP(ctx, driverName, p, req) }
	return nil
}

// checkedPort returns the host port that has the given label.
func (o *order) checkedPort(label string) (int, error) {
	for _, p := range o.ports {
		if p.Label == label {
			return p.Host, nil
		}
	}
	return 0, fmt.Errorf("check: the group has no port %q", label)
}

// policyFromProto returns the policy of a check. It limits each number to the bounds of the
// agent.
func policyFromProto(k *nusav1.Check) health.Policy {
	return health.Policy{
		Interval: within(minInterval, positiveOr(k.GetInterval().AsDuration(), defaultCheckInterval), maxInterval),
		Timeout:  min(positiveOr(k.GetTimeout().AsDuration(), defaultCheckTimeout), maxTimeout),
		Deadline: min(positiveOr(k.GetHealthyDeadline().AsDuration(), defaultCheckDeadline), maxInterval),
		Failures: int(positiveOr(k.GetFailures(), defaultCheckFailures)),
	}
}

// positiveOr returns v if it is positive, else the default.
func positiveOr[T cmp.Ordered](v, otherwise T) T {
	var zero T
	if v > zero {
		return v
	}
	return otherwise
}

// checkStateToProto returns the state of a run's check for reports.
func checkStateToProto(k *check, s healthState) *nusav1.CheckState {
	out := &nusav1.CheckState{Check: k.What, State: nusav1.HealthState(s.Phase) + nusav1.HealthState_HEALTH_STATE_WAITING,
		Since: timestamppb.New(s.Since), Message: s.Last.Message, Failures: int32(s.Failed)}
	if !s.Last.Began.IsZero() {
		out.At = timestamppb.New(s.Last.Began)
	}
	if health.Late(k.Policy, s.Last) {
		out.Late = durationpb.New(max(s.Last.Late, s.Last.Overslept))
	}
	return out
}

// awaitedCheck describes the check that an allocation waits for. It returns "" if no
// running task waits for a check.
func awaitedCheck(o *order, act reconcile.Actual, details map[string]*nusav1.TaskState) string {
	for _, t := range o.spec.Tasks {
		if !act.Tasks[t.Name].AwaitsCheck(t) {
			continue
		}
		text := details[t.Name].GetCheck().GetCheck()
		if message := details[t.Name].GetCheck().GetMessage(); message != "" {
			text += ": " + message
		}
		if len(o.spec.Tasks) > 1 {
			text = "task " + t.Name + ": " + text
		}
		return text
	}
	return ""
}
