package sim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

// lab is an HTTP server on a host of the simulated network: a provisioner and an upgrade controller. It
// refuses the first request of each key.
type lab struct {
	secret webhook.Secret
	mu     sync.Mutex
	// seen counts the requests by key. bodies has the latest body by key.
	seen   map[string]int
	bodies map[string]map[string]any
	forged int
}

const labAddr = "10.200.0.1:80"

func startLab(t *testing.T, f *sim.Federation) *lab {
	l := &lab{secret: webhook.NewSecret(), seen: map[string]int{}, bodies: map[string]map[string]any{}}
	lis, err := f.Net.Net("10.200.0.1").Listen(t.Context(), labAddr)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: l}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = srv.Serve(lis) }()
	t.Cleanup(func() { _ = srv.Close(); <-ended })
	return l
}

func (l *lab) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	id := r.Header.Get("Webhook-Id")
	at, _ := strconv.ParseInt(r.Header.Get("Webhook-Timestamp"), 10, 64)
	l.mu.Lock()
	defer l.mu.Unlock()
	var decoded map[string]any
	if r.Header.Get("Webhook-Signature") != webhook.Sign([]webhook.Secret{l.secret}, id, time.Unix(at, 0), body) || id != r.Header.Get("Idempotency-Key") || json.Unmarshal(body, &decoded) != nil {
		l.forged++
		return
	}
	l.bodies[id] = decoded
	if l.seen[id]++; l.seen[id] == 1 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// keys returns the keys that were seen, without the id of the spare.
func (l *lab) keys() (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(l.seen)) {
		out = append(out, fmt.Sprintf("%s %d", key[37:], l.seen[key]))
	}
	return out
}

// onSpares makes a call to the Spares service of the active global server.
func onSpares[T any](t *testing.T, f *sim.Federation, do func(context.Context, nusav1.SparesClient) (T, error)) (out T, err error) {
	err = f.OnGlobal(func(c *grpc.ClientConn) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		out, err = do(ctx, nusav1.NewSparesClient(c))
		return err
	})
	return out, err
}

func prepare(t *testing.T, f *sim.Federation, req *nusav1.PrepareSpareRequest) (*nusav1.Spare, error) {
	return onSpares(t, f, func(ctx context.Context, c nusav1.SparesClient) (*nusav1.Spare, error) { return c.Prepare(ctx, req) })
}

func awaitSpare(t *testing.T, f *sim.Federation, id string, want nusav1.SpareState, d time.Duration) (out *nusav1.Spare) {
	t.Helper()
	f.Eventually(d, fmt.Sprintf("spare %s is %v", id, want), func(context.Context) (err error) {
		out, err = onSpares(t, f, func(ctx context.Context, c nusav1.SparesClient) (*nusav1.Spare, error) {
			return c.Get(ctx, &nusav1.GetSpareRequest{Id: id})
		})
		if err == nil && out.GetState() != want {
			err = fmt.Errorf("it is %v", out)
		}
		return err
	})
	return out
}

func setProvisioner(t *testing.T, f *sim.Federation, p *nusav1.Provisioner, secret string) error {
	_, err := onSpares(t, f, func(ctx context.Context, c nusav1.SparesClient) (*nusav1.Provisioner, error) {
		return c.SetProvisioner(ctx, &nusav1.SetProvisionerRequest{Provisioner: p, Secret: secret})
	})
	return err
}

// TestSpareSurvivesAnElection: one host exists and one is provisioned. The active global server dies while
// the new host is awaited. Every request has one key, the controller learns once that the hosts are
// ready, and the release gives the room back.
func TestSpareSurvivesAnElection(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Globals: 2, Agents: 1, Reserve: true}, func(t *testing.T, f *sim.Federation) {
		l := startLab(t, f)
		lab := &nusav1.Provisioner{Name: "lab", Kind: &nusav1.Provisioner_Webhook{Webhook: &nusav1.WebhookProvisioner{Url: "http://" + labAddr + "/hosts"}}}
		if err := setProvisioner(t, f, lab, l.secret.Reveal()); err != nil {
			t.Fatal(err)
		}
		req := &nusav1.PrepareSpareRequest{Count: 2, Provisioner: "lab", CallbackUrl: "http://" + labAddr + "/ready", CallbackSecret: l.secret.Reveal(), IdempotencyKey: "upgrade-7"}
		first, err := prepare(t, f, req)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := prepare(t, f, req); err != nil || again.GetId() != first.GetId() || again.GetRequest().GetCallbackSecret() != "" {
			t.Errorf("the same key: %v, %v", again, err)
		}
		req.Count = 3
		if _, err := prepare(t, f, req); status.Code(err) != codes.AlreadyExists {
			t.Errorf("the key with another request: %v", err)
		}
		joining := awaitSpare(t, f, first.GetId(), nusav1.SpareState_SPARE_STATE_JOINING, time.Minute)
		if got := l.keys(); !slices.Equal(got, []string{"ask-1 2"}) {
			t.Errorf("requests: %v, state %v", got, joining)
		}
		_, err = onSpares(t, f, func(ctx context.Context, c nusav1.SparesClient) (*nusav1.Spare, error) {
			return c.Release(ctx, &nusav1.ReleaseSpareRequest{Id: first.GetId()})
		})
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a release before the hosts are ready: %v", err)
		}
		f.Kill(fmt.Sprintf("global-%d", f.Active()))
		f.StartAgent("alpha", 2)
		ready := awaitSpare(t, f, first.GetId(), nusav1.SpareState_SPARE_STATE_READY, 2*time.Minute)
		if got := l.keys(); !slices.Equal(got, []string{"ask-1 2", "notify 2"}) || l.forged > 0 {
			t.Errorf("requests: %v, %d forged", got, l.forged)
		}
		names := []string{ready.GetHosts()[0].GetNode(), ready.GetHosts()[1].GetNode()}
		slices.Sort(names)
		if !slices.Equal(names, []string{"alpha-agent-1", "alpha-agent-2"}) {
			t.Errorf("hosts %v", ready.GetHosts())
		}
		if hosts, _ := l.bodies[first.GetId()+"-notify"]["hosts"].([]any); len(hosts) != 2 {
			t.Errorf("the controller has got %v", l.bodies)
		}
		r := reserver{t, f}
		none := room(1)
		none.Wait = durationpb.New(0)
		r.await(r.create(none).GetId(), failed, 20*time.Second) // the hosts are held
		if _, err := onSpares(t, f, func(ctx context.Context, c nusav1.SparesClient) (*nusav1.Spare, error) {
			return c.Release(ctx, &nusav1.ReleaseSpareRequest{Id: first.GetId()})
		}); err != nil {
			t.Fatal(err)
		}
		awaitSpare(t, f, first.GetId(), nusav1.SpareState_SPARE_STATE_RELEASED, time.Minute)
		r.await(r.create(room(8)).GetId(), completed, 20*time.Second)
		checkSpareEvents(t, f, first.GetId())
	})
}

// checkSpareEvents: the events of a spare were stored once each, in order, by two servers.
func checkSpareEvents(t *testing.T, f *sim.Federation, id string) {
	t.Helper()
	var got []string
	err := f.OnGlobal(func(c *grpc.ClientConn) error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		stream, err := nusav1.NewEventsClient(c).Watch(ctx, &nusav1.WatchEventsRequest{Token: "0", Types: []string{"spare."}, Durable: true})
		for err == nil {
			var e *nusav1.Event
			e, err = stream.Recv()
			if err == nil && strings.HasSuffix(e.GetSubject(), id) {
				got = append(got, e.GetType())
			}
		}
		if status.Code(err) == codes.DeadlineExceeded || errors.Is(err, io.EOF) {
			return nil
		}
		return err
	})
	if want := []string{"spare.provisioning", "spare.prepared", "spare.notified", "spare.released"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("events %v, %v, want %v", got, err, want)
	}
}

// TestSparesThatEndEarly: a spare that is cancelled, one whose deadline passes, one that nobody releases,
// and one that the namespace cannot have.
func TestSparesThatEndEarly(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 1, Reserve: true}, func(t *testing.T, f *sim.Federation) {
		for _, c := range []struct {
			req  *nusav1.PrepareSpareRequest
			want string
		}{
			{&nusav1.PrepareSpareRequest{Count: 65}, "count"}, {&nusav1.PrepareSpareRequest{Provisioner: "nobody"}, "there is no provisioner"},
			{&nusav1.PrepareSpareRequest{CpuMilli: 5}, "memory_bytes"}, {&nusav1.PrepareSpareRequest{CallbackUrl: "http://10.0.0.9/x"}, "callback_secret"},
			{&nusav1.PrepareSpareRequest{Deadline: durationpb.New(25 * time.Hour)}, "deadline"}, {&nusav1.PrepareSpareRequest{CallbackUrl: "http://192.168.0.1/x"}, "callback_url"},
		} {
			if _, err := prepare(t, f, c.req); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: %v", c.req, err)
			}
		}
		if err := setProvisioner(t, f, &nusav1.Provisioner{Name: "ci", Kind: &nusav1.Provisioner_Gitlab{Gitlab: &nusav1.GitlabProvisioner{Url: "http://" + labAddr, Ref: "main"}}}, "two words"); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a token with a space: %v", err)
		}
		begin := func(req *nusav1.PrepareSpareRequest) string {
			x, err := prepare(t, f, req)
			if err != nil {
				t.Fatal(err)
			}
			return x.GetId()
		}
		late := begin(&nusav1.PrepareSpareRequest{Count: 2, Deadline: durationpb.New(time.Minute)})
		x := awaitSpare(t, f, late, nusav1.SpareState_SPARE_STATE_FAILED, 2*time.Minute)
		if !strings.Contains(x.GetMessage(), "1 of 2 hosts") || x.GetEnded().AsTime().Sub(x.GetCreated().AsTime()) < time.Minute {
			t.Errorf("%v", x)
		}
		wrong := begin(&nusav1.PrepareSpareRequest{Constraints: []string{"node.colour =="}})
		awaitSpare(t, f, wrong, nusav1.SpareState_SPARE_STATE_FAILED, time.Minute)
		old := begin(&nusav1.PrepareSpareRequest{Hold: durationpb.New(2 * time.Minute)})
		awaitSpare(t, f, old, nusav1.SpareState_SPARE_STATE_READY, time.Minute)
		awaitSpare(t, f, old, nusav1.SpareState_SPARE_STATE_EXPIRED, 3*time.Minute)
		gone := begin(&nusav1.PrepareSpareRequest{Count: 9})
		if _, err := onSpares(t, f, func(ctx context.Context, c nusav1.SparesClient) (*nusav1.Spare, error) {
			return c.Cancel(ctx, &nusav1.CancelSpareRequest{Id: gone})
		}); err != nil {
			t.Fatal(err)
		}
		awaitSpare(t, f, gone, nusav1.SpareState_SPARE_STATE_CANCELLED, time.Minute)
		r := reserver{t, f}
		r.await(r.create(room(8)).GetId(), completed, 30*time.Second) // all room is free again
		all, err := onSpares(t, f, func(ctx context.Context, c nusav1.SparesClient) (*nusav1.ListSparesResponse, error) {
			return c.List(ctx, &nusav1.ListSparesRequest{States: []nusav1.SpareState{nusav1.SpareState_SPARE_STATE_FAILED}})
		})
		if err != nil || len(all.GetSpares()) != 2 {
			t.Errorf("failed spares: %v, %v", all, err)
		}
	})
}
