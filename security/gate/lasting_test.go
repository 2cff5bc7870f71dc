package gate_test

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/gate"
	"github.com/nusa-scheduler/nusa/security/pkitest"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// silent is a stream that receives one request, and then nothing until its context ends.
type silent struct {
	fakeStream
	sent bool
}

func (s *silent) RecvMsg(any) error {
	if s.sent {
		<-s.ctx.Done()
		return io.EOF
	}
	s.sent = true
	return nil
}
func (*silent) SendMsg(any) error { return nil }

// TestStreamsEndWithTheirRights: a stream ends within 10 s after its right or its token has ended, and a
// stream whose right continues goes on.
func TestStreamsEndWithTheirRights(t *testing.T) {
	ca := pkitest.New(t)
	source, jane := ca.Source("global/g1"), ca.ID("operator/jane")
	synctest.Test(t, func(t *testing.T) {
		var current atomic.Pointer[rights.Set]
		must := func(s *rights.Set, err error) *rights.Set {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			current.Store(s)
			return s
		}
		bind := func(s *rights.Set, name, role, subject string, namespaces ...string) *rights.Set {
			return must(s.SetBinding(&nusav1.AuthBinding{Name: name, Role: role, Subjects: []string{subject}, Namespaces: namespaces}, rights.Change{}))
		}
		set := bind(must(rights.New(nil)), "jane", "viewer", "operator/jane")
		set, _, token, err := set.CreateToken(rights.NewToken{Request: &nusav1.CreateAccessTokenRequest{Roles: []string{"viewer"}, Ttl: durationpb.New(time.Minute)}, Now: time.Now()})
		must(set, err)
		g := gate.New(gate.Options{Source: source, Rights: current.Load})
		open := func(method, token string, req func() (namespace string)) <-chan error {
			ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: trust.Info{ID: jane}})
			if token != "" {
				ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(gate.TokenHeader, "Bearer "+token))
			}
			out := make(chan error, 1)
			go func() {
				out <- g.AroundStreams()[1](nil, &silent{fakeStream: fakeStream{ctx: ctx}}, &grpc.StreamServerInfo{FullMethod: "/nusa.v1." + method}, func(_ any, s grpc.ServerStream) error {
					if err := s.RecvMsg(&nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: "pay", Name: "api"}}); err != nil {
						return err
					}
					if req != nil {
						if err := rights.Of(s.Context()).Check(req(), "", "x"); err != nil {
							return err
						}
					}
					<-s.Context().Done()
					return context.Cause(s.Context())
				})
			}()
			synctest.Wait()
			return out
		}
		ended := func(what string, stream <-chan error, want codes.Code) {
			t.Helper()
			synctest.Wait()
			select {
			case err := <-stream:
				if status.Code(err) != want {
					t.Errorf("%s: %v, want %s", what, err, want)
				}
			default:
				if want != codes.OK {
					t.Errorf("%s: the stream goes on", what)
				}
			}
		}
		watch, byToken := open("Jobs/Watch", "", nil), open("Jobs/Watch", token, nil)
		logs := open("Allocations/Logs", "", func() string { return "pay" })
		ended("not allowed", logs, codes.PermissionDenied) // a viewer reads no logs
		set = bind(set, "logs", "submitter", "operator/jane", "pay")
		logs = open("Allocations/Logs", "", func() string { return "pay" })
		time.Sleep(30 * time.Second)
		for what, stream := range map[string]<-chan error{"a watch": watch, "logs": logs, "a watch by a token": byToken} {
			ended(what, stream, codes.OK)
		}
		set = bind(set, "logs", "submitter", "operator/jane", "web")
		time.Sleep(10 * time.Second)
		ended("logs of another namespace", logs, codes.PermissionDenied)
		ended("a watch that is still allowed", watch, codes.OK)
		time.Sleep(30 * time.Second)
		ended("an expired token", byToken, codes.Unauthenticated)
		bind(set, "jane", "submitter", "operator/joe")
		time.Sleep(10 * time.Second)
		ended("no role", watch, codes.PermissionDenied)
	})
}

// TestOneTimerForAllStreams: streams that begin and end quickly leave no timers.
func TestOneTimerForAllStreams(t *testing.T) {
	ca := pkitest.New(t)
	source, jane := ca.Source("global/g1"), ca.ID("operator/jane")
	synctest.Test(t, func(t *testing.T) {
		set, err := rights.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		var asked atomic.Int64
		g := gate.New(gate.Options{Source: source, Rights: func() *rights.Set {
			asked.Add(1)
			return set
		}})
		ctx, cancel := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{AuthInfo: trust.Info{ID: jane}}))
		serve := func(handler grpc.StreamHandler) {
			err := g.AroundStreams()[1](nil, &silent{fakeStream: fakeStream{ctx: ctx}}, &grpc.StreamServerInfo{FullMethod: "/nusa.v1.Jobs/Watch"}, handler)
			if err != nil {
				t.Error(err)
			}
		}
		for range 100 {
			serve(func(any, grpc.ServerStream) error { return nil })
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			serve(func(any, grpc.ServerStream) error {
				<-ctx.Done()
				return nil
			})
		}()
		synctest.Wait()
		asked.Store(0)
		time.Sleep(time.Minute)
		if n := asked.Load(); n < 20 || n > 40 {
			t.Errorf("the streams were decided again %d times in a minute, want about 30", n)
		}
		cancel()
		<-ended
	})
}

// TestRates: a principal that makes too many calls gets RESOURCE_EXHAUSTED with the time to wait, and
// others are not concerned. Submits have a rate of their own.
func TestRates(t *testing.T) {
	w := newWorld(t, "global/g1")
	source := w.ca.Source(w.server)
	g := gate.New(gate.Options{Source: source, Rights: func() *rights.Set { return w.set }, Now: func() time.Time { return w.now }, Limits: gate.Limits{Calls: 10, Submits: 2}})
	call := func(as string, handle func(ctx context.Context) error) error {
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: trust.Info{ID: w.ca.ID(as)}})
		_, err := g.Around()[1](ctx, &nusav1.SubmitRequest{}, &grpc.UnaryServerInfo{FullMethod: "/nusa.v1.Jobs/Submit"}, func(ctx context.Context, _ any) (any, error) {
			return nil, handle(ctx)
		})
		return err
	}
	check := func(ctx context.Context) error { return rights.Of(ctx).Check("pay", "", "x") }
	allowed := func(as string, handle func(context.Context) error, tries int) (n int) {
		for range tries {
			switch err := call(as, handle); status.Code(err) {
			case codes.OK:
				n++
			case codes.ResourceExhausted:
				w.want(err, codes.ResourceExhausted, as+" makes too many")
			default:
				t.Fatal(err)
			}
		}
		return n
	}
	if n := allowed("operator/jane", check, 50); n != 20 {
		t.Errorf("%d calls at once, want 20", n)
	}
	if n := allowed("operator/joe", check, 5); n != 5 {
		t.Errorf("%d calls of another, want 5", n)
	}
	if n := allowed("global/g2", func(context.Context) error { return nil }, 50); n != 50 {
		t.Errorf("%d calls of a member, want 50", n)
	}
	w.now = w.now.Add(time.Second)
	if n := allowed("operator/jane", check, 50); n != 10 {
		t.Errorf("%d calls a second later, want 10", n)
	}
	w.now = w.now.Add(time.Minute)
	submit := func(ctx context.Context) error {
		return rights.Submit(ctx, nil, rights.Submission{Namespace: "pay", Name: "x", Asked: &rights.Asked{}})
	}
	if n := allowed("operator/jane", submit, 10); n != 4 {
		t.Errorf("%d submits at once, want 4", n)
	}
}
