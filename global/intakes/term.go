package intakes

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/objects"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/broker"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/authz"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// intakeKind is the kind of the keys: see state.OtherKey.
const intakeKind = "intakes"

const (
	// maxIntakes bounds the intakes of a federation.
	maxIntakes = 64
	// alarmEvery is how often the alarm is determined.
	alarmEvery = 5 * time.Second
)

// Config has what intakes need of their leadership term.
type Config struct {
	State  *state.State
	Commit *state.Committer
	Store  store.Store
	Policy *webhook.Policy
	// Secure: the servers have identities, so every job needs the rights of a principal.
	Secure bool
	// API submits the jobs.
	API *api.Term
	// Metrics are those of the process.
	Metrics *Metrics
	Log     *slog.Logger
	// Submit, Dial, Now and Random may be set in tests. Submit begins the submit of a message's job.
	Submit func(ctx context.Context, in *nusav1.Intake, message string, req *nusav1.SubmitRequest) (finish func(context.Context) error)
	Dial   func(context.Context, *broker.Target, broker.Intake) (broker.Consumer, error)
	Now    func() time.Time
	Random func() float64
}

// Term takes the messages of all intakes during one leadership term.
type Term struct {
	Config
	intakes *objects.Table[*nusav1.IntakeRecord]
	crew    objects.Crew[*nusav1.IntakeRecord, *worker]
	// ended is closed when Run has returned.
	ended chan struct{}
}

// NewTerm returns the intakes of a term. It must be made before the term serves, and Run must be called.
func NewTerm(cfg Config) *Term {
	if cfg.Dial == nil {
		cfg.Dial = broker.NewConsumer
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Random == nil {
		cfg.Random = rand.Float64
	}
	t := &Term{Config: cfg, ended: make(chan struct{})}
	if t.Submit == nil {
		t.Submit = t.submit
	}
	t.intakes = objects.NewTable(cfg.State, intakeKind, func() *nusav1.IntakeRecord { return new(nusav1.IntakeRecord) })
	t.crew = objects.Crew[*nusav1.IntakeRecord, *worker]{
		Begin: func(name string, _ *nusav1.IntakeRecord) *worker {
			return &worker{Term: t, name: name, report: objects.Reporter(t.Now, t.State.Events.Add), wake: make(chan struct{}, 1)}
		},
		ID: (*nusav1.IntakeRecord).GetId, Revision: func(r *nusav1.IntakeRecord) int64 { return r.GetIntake().GetRevision() },
	}
	return t
}

// Run takes messages until ctx ends. When it returns, no connection is open.
func (t *Term) Run(ctx context.Context) error {
	defer close(t.ended)
	if err := t.intakes.Load(ctx, t.Store); err != nil {
		return err
	}
	defer t.crew.Stop()
	tick := time.NewTicker(alarmEvery)
	defer tick.Stop()
	for {
		changed := t.intakes.Changed.C()
		t.crew.Follow(ctx, t.intakes.All())
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-tick.C:
			t.alarm()
		}
	}
}

// alarm tells operators which intakes fail.
func (t *Term) alarm() {
	var found []string
	names, all := t.crew.All()
	for i, w := range all {
		if w.alarms() {
			found = append(found, names[i])
		}
	}
	text := objects.AlarmText("messages wait too long for intakes", found, "nusa intake list")
	if state.SetObjectAlarm(t.State, intakeKind, text) {
		t.Log.Error(text)
	}
}

// submit begins the submit of a message's job, with the present rights of the intake's principal.
func (t *Term) submit(ctx context.Context, in *nusav1.Intake, message string, req *nusav1.SubmitRequest) (finish func(context.Context) error) {
	call, err := t.callOf(in.GetPrincipal(), in.GetNamespace())
	if err != nil {
		// Not PERMISSION_DENIED: the fault is that of the intake, and its messages wait.
		err = status.Errorf(codes.Unauthenticated, "%s: store the intake again as an operator who may", status.Convert(err).Message())
		return func(context.Context) error { return err }
	}
	if call != nil {
		ctx = rights.With(ctx, call)
	}
	by := audit.Call{Who: in.GetPrincipal(), Method: "Intakes/" + in.GetName(), Request: fmt.Sprintf("%.100s", message)}
	return api.SubmitFor(ctx, t.API, req, by)
}

// callOf returns the call with which a principal submits jobs. It is nil if the servers have no identities.
// The error says why the principal may submit no job at all.
func (t *Term) callOf(principal, namespace string) (*rights.Call, error) {
	switch set := t.State.Auth.Load(); {
	case !t.Secure:
		return nil, nil
	case principal == "":
		return nil, status.Error(codes.PermissionDenied, "the intake was stored while the servers had no identities")
	case set == nil:
		return nil, status.Error(codes.Unavailable, "this server does not know yet who may do what")
	default:
		return callOf(set, principal, namespace, t.Now())
	}
}

func callOf(set *rights.Set, principal, namespace string, now time.Time) (*rights.Call, error) {
	who, err := set.Principal(principal)
	if err != nil {
		return nil, status.Error(codes.PermissionDenied, err.Error())
	}
	call := &rights.Call{Set: set, Who: who, Verb: "submit", Kind: "job"}
	// A user whose login has ended may still be the subject of a binding.
	if !strings.HasPrefix(principal, "operator/") {
		token, _ := set.Object("token", who.Credential).(*nusav1.AccessToken)
		if token == nil || !now.Before(token.GetExpires().AsTime()) {
			return nil, status.Errorf(codes.PermissionDenied, "the access token of %s has expired or was revoked", principal)
		}
		call.Token = token
	}
	if !set.Somewhere(who, authz.Action{Verb: "submit", Kind: "job", Namespace: namespace}) {
		return nil, status.Errorf(codes.PermissionDenied, "%s may not submit jobs in namespace %s", principal, namespace)
	}
	return call, nil
}
