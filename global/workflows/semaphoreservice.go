package workflows

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/api"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/workflows/semaphore"
	"github.com/nusa-scheduler/nusa/internal/filter"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/recorder"
	"github.com/nusa-scheduler/nusa/security/rights"
)

const (
	// mostSemaphores bounds the semaphores of a namespace, and mostShown the steps in an answer.
	mostSemaphores, mostShown = 1000, 100
	kindSemaphore             = "semaphore"
)

// Semaphores is the Semaphores service of a global server.
type Semaphores struct {
	nusav1.UnimplementedSemaphoresServer
	// Current is like that of Service.
	Current func() *Book
}

func (s *Semaphores) book(ctx context.Context) (*Book, error) {
	return (&Service{Current: s.Current}).book(ctx)
}

func semaphoreKey(namespace, name string) (state.JobKey, error) {
	k := state.JobKey{Namespace: cmp.Or(namespace, job.DefaultNamespace), Name: name}
	switch {
	case !job.ValidName(k.Namespace):
		return k, invalid("namespace", "%q is not a name", k.Namespace)
	case !job.ValidName(k.Name):
		return k, invalid("name", "%q is not a name: 1 to 63 of a-z, 0-9 and -, starting with a letter", k.Name)
	}
	return k, nil
}

func noSemaphore(k state.JobKey) error {
	return rpcerr.NotFound(kindSemaphore, k.String(), fmt.Sprintf("there is no semaphore %s: `nusa semaphore list` shows them", k))
}

func semaphoreRecordKey(k state.JobKey) string { return state.OtherKey(semaphoreKind, k.String()) }

// Set implements nusav1.SemaphoresServer.
func (s *Semaphores) Set(ctx context.Context, req *nusav1.SetSemaphoreRequest) (*nusav1.Semaphore, error) {
	k, err := semaphoreKey(req.GetNamespace(), req.GetName())
	if err != nil {
		return nil, err
	}
	if n := req.GetUnits(); n < 1 || n > job.MaxSemaphoreUnits {
		return nil, invalid("units", "must be 1..%d; nusa semaphore remove %s removes it", job.MaxSemaphoreUnits, k.Name)
	}
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	_, err = b.term.Commit.SubmitBy(recorder.Of(ctx), func(t *state.Tx) error {
		if err := b.may(); err != nil {
			return status.Error(codes.FailedPrecondition, err.Error())
		}
		if b.st.GlobalLevel < state.StepNeedsLevel {
			return status.Error(codes.FailedPrecondition, "some global servers have an earlier version of Nusa, which knows no semaphores: upgrade them first")
		}
		if _, is := b.st.Templates.Semaphores[k]; !is && countSemaphores(b, k.Namespace) >= mostSemaphores {
			return status.Errorf(codes.ResourceExhausted, "namespace %s has %d semaphores, the most there may be: remove some", k.Namespace, mostSemaphores)
		}
		if err := t.Audit(audit.Entry{Verb: "set", Kind: kindSemaphore, Namespace: k.Namespace, Name: k.Name, Reason: fmt.Sprintf("units: %d", req.GetUnits())}); err != nil {
			return err
		}
		return state.PutOther(t, semaphoreRecordKey(k), &nusav1.SemaphoreRecord{Units: req.GetUnits()})
	})(ctx)
	if err != nil {
		return nil, api.StatusOf(err)
	}
	b.st.Lock()
	defer b.st.Unlock()
	return showSemaphore(b, k, false), nil
}

// countSemaphores returns the number of semaphores of a namespace. The lock is held.
func countSemaphores(b *Book, namespace string) (n int) {
	for k := range b.st.Templates.Semaphores {
		n += one(k.Namespace == namespace)
	}
	return n
}

// Get implements nusav1.SemaphoresServer.
func (s *Semaphores) Get(ctx context.Context, req *nusav1.GetSemaphoreRequest) (*nusav1.Semaphore, error) {
	k, err := semaphoreKey(req.GetNamespace(), req.GetName())
	if err != nil {
		return nil, err
	}
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	b.st.Lock()
	defer b.st.Unlock()
	if b.st.Templates.Semaphores[k] == 0 {
		return nil, noSemaphore(k)
	}
	return showSemaphore(b, k, true), nil
}

// List implements nusav1.SemaphoresServer.
func (s *Semaphores) List(ctx context.Context, req *nusav1.ListSemaphoresRequest) (*nusav1.ListSemaphoresResponse, error) {
	limit, err := pageOf(req.GetLimit())
	if err != nil {
		return nil, err
	}
	if err := filter.Check(req.GetStates(), filter.SemaphoreStates); err != nil {
		return nil, err
	}
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	call := rights.Of(ctx)
	filtered := call.Filtered()
	b.st.Lock()
	defer b.st.Unlock()
	found := filter.NewFirst[*nusav1.Semaphore](limit+1, req.GetPageToken())
	for k := range b.st.Templates.Semaphores {
		key := k.String()
		if req.GetNamespace() != "" && k.Namespace != req.GetNamespace() || filtered && !call.May(k.Namespace, "") || !found.Wants(key) {
			continue
		}
		if one := showSemaphore(b, k, false); filter.Has(req.GetStates(), filter.Semaphore(one)...) {
			found.Add(key, one)
		}
	}
	out := &nusav1.ListSemaphoresResponse{}
	out.Semaphores, out.NextPageToken = found.Page()
	return out, nil
}

// Remove implements nusav1.SemaphoresServer.
func (s *Semaphores) Remove(ctx context.Context, req *nusav1.RemoveSemaphoreRequest) (*nusav1.RemoveSemaphoreResponse, error) {
	k, err := semaphoreKey(req.GetNamespace(), req.GetName())
	if err != nil {
		return nil, err
	}
	b, err := s.book(ctx)
	if err != nil {
		return nil, err
	}
	_, err = b.term.Commit.SubmitBy(recorder.Of(ctx), func(t *state.Tx) error {
		if err := b.may(); err != nil {
			return status.Error(codes.FailedPrecondition, err.Error())
		}
		if b.st.Templates.Semaphores[k] == 0 {
			return noSemaphore(k)
		}
		if now := showSemaphore(b, k, false); now.GetHolders()+now.GetWaiters() > 0 {
			return status.Errorf(codes.FailedPrecondition, "%d steps hold semaphore %s, and %d wait for it: `nusa semaphore status %s` shows them", now.GetHolders(), k, now.GetWaiters(), k.Name)
		}
		if err := t.Audit(audit.Entry{Verb: "remove", Kind: kindSemaphore, Namespace: k.Namespace, Name: k.Name}); err != nil {
			return err
		}
		return state.DeleteOther(t, semaphoreRecordKey(k))
	})(ctx)
	if err != nil {
		return nil, api.StatusOf(err)
	}
	return &nusav1.RemoveSemaphoreResponse{}, nil
}

// semaphoreStep describes an item that needs a semaphore. Nil: it does not need it. The lock is held.
func semaphoreStep(b *Book, k state.JobKey, of semaphore.Key, needs []semaphore.Need, since time.Time) *nusav1.SemaphoreStep {
	at := slices.IndexFunc(needs, func(n semaphore.Need) bool { return n.Name == k.Name })
	r := b.runs[state.JobKey{Namespace: k.Namespace, Name: of.Run}]
	if at < 0 || r == nil {
		return nil
	}
	out := &nusav1.SemaphoreStep{Run: of.Run, Step: r.def.graph.Steps[of.Step].Name, Units: int32(needs[at].Units), Since: timestamppb.New(since)}
	if r.items[of.Step] != nil {
		index := int32(of.Item)
		out.Index = &index
	}
	return out
}
