package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/client"
	"github.com/nusa-scheduler/nusa/client/clienttest"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start returns a server and a client of it.
func start(t *testing.T) (*clienttest.Server, *client.Client, context.Context) {
	t.Helper()
	s := clienttest.New()
	c := s.Client()
	t.Cleanup(func() { c.Close(); s.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return s, c, ctx
}

func spec(name string) *nusav1.JobSpec { return &nusav1.JobSpec{Namespace: "default", Name: name} }

func ref(name string) *nusav1.JobRef { return &nusav1.JobRef{Namespace: "default", Name: name} }

// TestKindsOfErrors: each failure of a server has its kind, its code, and the status of gRPC. Only a
// call that has not taken effect, and a read, are repeated.
func TestKindsOfErrors(t *testing.T) {
	for _, c := range []struct {
		kind          error
		code          codes.Code
		repeatsWrites bool
		repeatsReads  bool
	}{
		{client.ErrNotLeader, codes.Unavailable, true, true},
		{client.ErrRegionUnreachable, codes.Unavailable, false, true},
		{client.ErrUnavailable, codes.Unavailable, false, true},
		{client.ErrConflict, codes.Aborted, false, false},
		{client.ErrPrecondition, codes.FailedPrecondition, false, false},
		{client.ErrDenied, codes.PermissionDenied, false, false},
		{client.ErrUnauthenticated, codes.Unauthenticated, false, false},
		{client.ErrFull, codes.ResourceExhausted, false, false},
		{client.ErrNotFound, codes.NotFound, false, false},
		{client.ErrInvalid, codes.InvalidArgument, false, false},
		{client.ErrUnsupported, codes.Unimplemented, false, false},
	} {
		t.Run(c.kind.Error(), func(t *testing.T) {
			t.Parallel()
			s, nusa, ctx := start(t)
			for _, call := range []struct {
				name    string
				make    func() error
				repeats bool
			}{
				{"Submit", func() error {
					_, err := nusa.Jobs().Submit(ctx, &nusav1.SubmitRequest{Spec: spec("api")})
					return err
				}, c.repeatsWrites},
				{"List", func() error { _, err := nusa.Jobs().List(ctx, &nusav1.ListJobsRequest{}); return err }, c.repeatsReads},
			} {
				s.Fail(call.name, c.kind, 1)
				err := call.make()
				if call.repeats {
					if err != nil {
						t.Errorf("%s was not repeated: %v", call.name, err)
					}
					continue
				}
				var typed *client.Error
				if !errors.Is(err, c.kind) || !errors.As(err, &typed) || typed.Code != c.code || status.Code(err) != c.code || !strings.Contains(err.Error(), "on demand") {
					t.Errorf("%s: %v with code %s", call.name, err, status.Code(err))
				}
				for _, other := range []error{client.ErrConflict, client.ErrDenied, client.ErrFull} {
					if other != c.kind && errors.Is(err, other) {
						t.Errorf("%s: %v is also %v", call.name, err, other)
					}
				}
			}
		})
	}
}

// TestRepeatsAreBounded: a call that fails each time returns the error after Retries repetitions.
func TestRepeatsAreBounded(t *testing.T) {
	t.Parallel()
	s, c, ctx := start(t)
	s.Fail("Get", client.ErrNotLeader, 6)
	if _, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref("api")}); !errors.Is(err, client.ErrNotLeader) {
		t.Errorf("after six failures: %v", err)
	}
	if _, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref("api")}); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("the failures were not used up by one call and its five repetitions: %v", err)
	}
}

// TestSubmitIsHarmlessTwice: a submit gets a key, so that its repetition changes nothing.
func TestSubmitIsHarmlessTwice(t *testing.T) {
	t.Parallel()
	s, c, ctx := start(t)
	s.Fail("Submit", client.ErrUnavailable, 2)
	out, err := c.Submit(ctx, &nusav1.SubmitRequest{Spec: spec("api")})
	if err != nil || out.GetVersion() != 1 {
		t.Fatalf("%v, %v", out, err)
	}
	req := &nusav1.SubmitRequest{Spec: spec("web"), IdempotencyKey: "k"}
	first, err := c.Submit(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Submit(ctx, req); err != nil || again.GetRevision() != first.GetRevision() {
		t.Errorf("again: %v, %v, want %v", again, err, first)
	}
}

// TestAnotherServerIsCalled: a client goes on with the next server when one cannot be reached, and
// when one does not lead.
func TestAnotherServerIsCalled(t *testing.T) {
	t.Parallel()
	a, b := clienttest.New(), clienttest.New()
	t.Cleanup(func() { a.Close(); b.Close() })
	b.SetRegion(&nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "on-b"}})
	var down atomic.Bool // a
	down.Store(true)
	c, err := client.Open(client.Options{Addresses: []string{"a", "b"}, Insecure: true, Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		if addr == "a:7600" && down.Load() {
			return nil, errors.New("connection refused")
		}
		return map[string]*clienttest.Server{"a:7600": a, "b:7600": b}[addr].Dial(ctx)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	at := func(want string) {
		t.Helper()
		out, err := c.Regions().List(t.Context(), &nusav1.ListRegionsRequest{})
		if err != nil || len(out.GetRegions()) > 0 != (want == "b") {
			t.Errorf("regions %v, %v; want those of %s", out, err, want)
		}
	}
	at("b")
	down.Store(false)
	b.Fail("List", client.ErrNotLeader, 1)
	at("a")
	c.NextServer()
	at("b")
}

// TestWatchesContinue: after broken connections and elections a watch of events misses nothing and
// repeats nothing.
func TestWatchesContinue(t *testing.T) {
	t.Parallel()
	s, c, ctx := start(t)
	next := 1
	s.AddEvent("test", "0", "") // before the watch
	s.AddEvent("test", "1", "")
	add := func() {
		next++
		s.AddEvent("test", fmt.Sprint(next), "")
	}
	for e, err := range c.WatchEvents(ctx, &nusav1.WatchEventsRequest{Token: "clienttest-1"}) {
		if err != nil {
			t.Fatal(err)
		}
		if e.GetSubject() != fmt.Sprint(next) {
			t.Fatalf("event %v, want %d", e, next)
		}
		if next == 20 {
			break
		}
		switch next % 3 {
		case 1:
			s.Break()
		case 2:
			s.Fail("Watch", client.ErrNotLeader, 1)
			s.Break()
		}
		add()
	}
	if next != 20 {
		t.Errorf("the watch ended after %d events", next)
	}
}

// TestWatchWithoutEvents: a watch that breaks before the first event does not lose what happens until it
// continues.
func TestWatchWithoutEvents(t *testing.T) {
	t.Parallel()
	s := clienttest.New()
	defer s.Close()
	opened := 0
	c, err := client.Open(client.Options{
		Addresses: []string{"a"}, Insecure: true, Dial: func(ctx context.Context, _ string) (net.Conn, error) { return s.Dial(ctx) },
		GRPC: []grpc.DialOption{grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			if opened++; opened == 2 {
				s.AddEvent("test", "during the break", "")
			}
			return open(ctx, desc, conn, method, o...)
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s.Fail("Watch", client.ErrNotLeader, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for e, err := range c.WatchEvents(ctx, &nusav1.WatchEventsRequest{}) {
		if err != nil || e.GetSubject() != "during the break" {
			t.Fatalf("%v, %v", e, err)
		}
		break
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s, c, _ := start(t)
	s.SetRegion(&nusav1.Region{Definition: &nusav1.RegionDefinition{Name: "r"}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var last error
	n := 0
	for r, err := range c.WatchRegions(ctx, &nusav1.ListRegionsRequest{}) {
		last = err
		if r != nil {
			n++
			cancel()
		}
	}
	if n != 1 || !errors.Is(last, context.Canceled) {
		t.Errorf("%d regions, then %v", n, last)
	}
	for _, err := range c.WatchJob(t.Context(), ref("none")) {
		if !errors.Is(err, client.ErrNotFound) {
			t.Errorf("a job that does not exist: %v", err)
		}
	}
}

func TestWaitRunning(t *testing.T) {
	t.Parallel()
	s, c, ctx := start(t)
	s.Hold(true)
	out, err := c.Submit(ctx, &nusav1.SubmitRequest{Spec: spec("api")})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		s.Break()
		_ = s.SetState("default", "api", nusav1.JobState_JOB_STATE_STARTING, "")
		_ = s.SetState("default", "api", nusav1.JobState_JOB_STATE_RUNNING, "")
	}()
	if j, err := c.WaitRunning(ctx, ref("api"), out.GetVersion()); err != nil || j.GetStatus().GetState() != nusav1.JobState_JOB_STATE_RUNNING {
		t.Errorf("%v, %v", j, err)
	}
	if err := s.SetState("default", "api", nusav1.JobState_JOB_STATE_FAILED, "exit code 1"); err != nil {
		t.Fatal(err)
	}
	var failed *client.JobError
	if _, err := c.WaitRunning(ctx, ref("api"), 1); !errors.Is(err, client.ErrJobFailed) || !errors.As(err, &failed) || !strings.Contains(err.Error(), "exit code 1") {
		t.Errorf("a failed job: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := c.WaitRunning(short, ref("api"), 2); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a version that does not come: %v", err)
	}
	purged := make(chan error, 1)
	go func() { _, err := c.WaitRunning(ctx, ref("api"), 2); purged <- err }()
	if _, err := c.Jobs().Stop(ctx, &nusav1.StopJobRequest{Job: ref("api"), Purge: true}); err != nil {
		t.Fatal(err)
	}
	if err := <-purged; !errors.Is(err, client.ErrJobFailed) && !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a purged job: %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for want, o := range map[string]client.Options{
		"give the address":                       {Insecure: true},
		"give Identity, or Roots":                {Addresses: []string{"g1"}},
		"either Socket or Addresses":             {Addresses: []string{"g1"}, Socket: "s"},
		"Insecure excludes":                      {Addresses: []string{"g1"}, Insecure: true, Token: client.StaticToken("t")},
		"is not a port":                          {Addresses: []string{"g1:x"}, Insecure: true},
		"Identity: identity folder":              {Addresses: []string{"g1"}, Identity: t.TempDir()},
		"Roots: ":                                {Addresses: []string{"g1"}, Roots: []byte("x")},
		"an address is empty":                    {Addresses: []string{" "}, Insecure: true},
		"no port follows the colon of 10.0.0.1:": {Addresses: []string{"10.0.0.1:"}, Insecure: true},
	} {
		c, err := client.Open(o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
		if err == nil {
			c.Close()
		}
	}
}

// TestDependencies: a program that uses the client gets no further modules than gRPC, protobuf and
// what these need.
func TestDependencies(t *testing.T) {
	list, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".", "./clienttest").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := slices.Compact(slices.Sorted(strings.FieldsSeq(string(list))))
	for _, m := range modules {
		if m != "github.com/nusa-scheduler/nusa" && !strings.HasPrefix(m, "google.golang.org/") && !strings.HasPrefix(m, "golang.org/x/") {
			t.Errorf("the client needs %s", m)
		}
	}
	if len(modules) < 3 {
		t.Errorf("only %v were listed", modules)
	}
}
