package sim_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/sim"
)

const (
	processing = nusav1.ReservationState_RESERVATION_STATE_PROCESSING
	completed  = nusav1.ReservationState_RESERVATION_STATE_COMPLETED
	failed     = nusav1.ReservationState_RESERVATION_STATE_FAILED
	released   = nusav1.ReservationState_RESERVATION_STATE_RELEASED
	expired    = nusav1.ReservationState_RESERVATION_STATE_EXPIRED
)

// room is a request for some cores. An agent has 8.
func room(cores int64) *nusav1.CreateReservationRequest {
	return &nusav1.CreateReservationRequest{CpuMilli: cores * 1000, MemoryBytes: 64 << 20}
}

// reserver makes calls to the Reservations service of the active global server.
type reserver struct {
	t *testing.T
	f *sim.Federation
}

func (r reserver) call(do func(context.Context, nusav1.ReservationsClient) (*nusav1.Reservation, error)) (out *nusav1.Reservation, err error) {
	err = r.f.OnGlobal(func(c *grpc.ClientConn) error {
		ctx, cancel := context.WithTimeout(r.t.Context(), 20*time.Second)
		defer cancel()
		out, err = do(ctx, nusav1.NewReservationsClient(c))
		return err
	})
	return out, err
}

func (r reserver) create(req *nusav1.CreateReservationRequest) *nusav1.Reservation {
	r.t.Helper()
	out, err := r.call(func(ctx context.Context, c nusav1.ReservationsClient) (*nusav1.Reservation, error) {
		return c.Create(ctx, req)
	})
	if err != nil {
		r.t.Fatalf("create: %v", err)
	}
	return out
}

func (r reserver) get(id string) (*nusav1.Reservation, error) {
	return r.call(func(ctx context.Context, c nusav1.ReservationsClient) (*nusav1.Reservation, error) {
		return c.Get(ctx, &nusav1.GetReservationRequest{Id: id})
	})
}

func (r reserver) release(id string) (*nusav1.Reservation, error) {
	return r.call(func(ctx context.Context, c nusav1.ReservationsClient) (*nusav1.Reservation, error) {
		return c.Release(ctx, &nusav1.ReleaseReservationRequest{Id: id})
	})
}

func (r reserver) claim(id, by, text string) (*nusav1.Reservation, error) {
	return r.call(func(ctx context.Context, c nusav1.ReservationsClient) (*nusav1.Reservation, error) {
		return c.Claim(ctx, &nusav1.ClaimReservationRequest{Id: id, By: by, Text: text})
	})
}

// await returns a reservation once it has a state.
func (r reserver) await(id string, want nusav1.ReservationState, d time.Duration) (out *nusav1.Reservation) {
	r.t.Helper()
	r.f.Eventually(d, fmt.Sprintf("reservation %s is %v", id, want), func(context.Context) (err error) {
		out, err = r.get(id)
		if err == nil && out.GetState() != want {
			err = fmt.Errorf("it is %v", out)
		}
		return err
	})
	return out
}

func TestReservationsTakeRoomAndGiveItBack(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 2, Reserve: true}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		r := reserver{t, f}
		first := r.create(room(5))
		if first.GetState() != processing || len(first.GetId()) != 36 {
			t.Fatalf("created %v", first)
		}
		second := r.create(room(5))
		x, y := r.await(first.GetId(), completed, 10*time.Second), r.await(second.GetId(), completed, 10*time.Second)
		if a, b := x.GetNode(), y.GetNode(); a.GetName() == b.GetName() || a.GetRegion() != "alpha" {
			t.Errorf("nodes %v and %v", a, b)
		}
		// Both nodes have 3 cores left, so a third one fails: at once, or after its wait.
		now := room(5)
		now.Wait = durationpb.New(0)
		began := time.Now()
		none := r.await(r.create(now).GetId(), failed, 20*time.Second)
		if took := time.Since(began); took > 5*time.Second || !strings.HasPrefix(none.GetMessage(), "No available nodes") || none.GetReason() == 0 {
			t.Errorf("after %s: %v", took, none)
		}
		later := room(5)
		later.Wait = durationpb.New(time.Minute)
		began = time.Now()
		waits := r.create(later)
		none = r.await(waits.GetId(), failed, 90*time.Second)
		if took := time.Since(began); took < time.Minute || took > 65*time.Second {
			t.Errorf("failed after %s: %v", took, none)
		}
		if _, err := f.Job(t.Context(), none.GetJob()); status.Code(err) != codes.NotFound {
			t.Errorf("the job of a failed reservation: %v", err)
		}
		// Released room goes to a reservation that waits for room.
		waits = r.create(later)
		time.Sleep(5 * time.Second)
		if out, err := r.release(first.GetId()); err != nil || out.GetState() != released || out.GetNode().GetName() == "" {
			t.Errorf("released: %v, %v", out, err)
		}
		if got := r.await(waits.GetId(), completed, 30*time.Second); got.GetNode().GetId() != x.GetNode().GetId() {
			t.Errorf("it is on %v, want the released node %v", got.GetNode(), x.GetNode())
		}
		if again, err := r.release(first.GetId()); err != nil || again.GetState() != released {
			t.Errorf("released again: %v, %v", again, err)
		}
	})
}

func TestReservationsExpireAndAreForgotten(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 1, Reserve: true, ReservationRetention: time.Hour}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		r := reserver{t, f}
		req := room(8)
		req.Ttl = durationpb.New(10 * time.Minute)
		one := r.await(r.create(req).GetId(), completed, 10*time.Second)
		time.Sleep(9 * time.Minute)
		if got, err := r.get(one.GetId()); err != nil || got.GetState() != completed {
			t.Fatalf("before its ttl: %v, %v", got, err)
		}
		over := r.await(one.GetId(), expired, 2*time.Minute)
		if lived := over.GetEnded().AsTime().Sub(over.GetCompleted().AsTime()); lived < 10*time.Minute-time.Second || lived > 10*time.Minute+10*time.Second {
			t.Errorf("lived for %s", lived)
		}
		r.await(r.create(room(8)).GetId(), completed, 20*time.Second) // the room is free again
		time.Sleep(50 * time.Minute)
		if _, err := r.get(one.GetId()); err != nil {
			t.Errorf("before the end of the retention: %v", err)
		}
		time.Sleep(11 * time.Minute)
		if _, err := r.get(one.GetId()); status.Code(err) != codes.NotFound {
			t.Errorf("after the retention: %v", err)
		}
	})
}

// TestClaimedReservationsSurvive: a claim outlives the active global server, and stays when the
// reservation moves because its node is lost.
func TestClaimedReservationsSurvive(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Globals: 2, Agents: 2, Reserve: true}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		r := reserver{t, f}
		id := r.create(room(3)).GetId()
		if _, err := r.claim(id, "virtflow", "{}"); err != nil && status.Code(err) != codes.FailedPrecondition {
			t.Errorf("claim of a reservation that is processing: %v", err)
		}
		before := r.await(id, completed, 10*time.Second)
		if _, err := r.claim(id, "virtflow", `{"vm": "web-1"}`); err != nil {
			t.Fatal(err)
		}
		if _, err := r.claim(id, "other", "{}"); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a second claim: %v", err)
		}
		if _, err := r.claim(id, "virtflow", strings.Repeat("x", 16<<10+1)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("a claim that is too long: %v", err)
		}
		f.Kill(fmt.Sprintf("global-%d", f.Active()))
		f.AwaitRegions()
		if got, err := r.get(id); err != nil || got.GetState() != completed || got.GetClaim().GetText() != `{"vm": "web-1"}` || got.GetNode().GetId() != before.GetNode().GetId() {
			t.Fatalf("after an election: %v, %v", got, err)
		}
		f.Kill(before.GetNode().GetName())
		f.Eventually(2*time.Minute, "the reservation moves", func(context.Context) error {
			got, err := r.get(id)
			if err == nil && (got.GetMoves() != 1 || got.GetNode().GetId() == before.GetNode().GetId() || got.GetMovedFrom().GetId() != before.GetNode().GetId() || got.GetClaim().GetBy() != "virtflow") {
				err = fmt.Errorf("it is %v", got)
			}
			return err
		})
	})
}

func TestReservationKeysAndLists(t *testing.T) {
	inBubble(t, sim.Options{Regions: []string{"alpha"}, Agents: 1, Reserve: true}, func(t *testing.T, f *sim.Federation) {
		f.AwaitRegions()
		r := reserver{t, f}
		keyed := room(1)
		keyed.IdempotencyKey = "order 66/a"
		one := r.create(keyed)
		if again := r.create(keyed); again.GetId() != one.GetId() {
			t.Errorf("the same key made %s and %s", one.GetId(), again.GetId())
		}
		other := proto.CloneOf(keyed)
		other.CpuMilli++
		_, err := r.call(func(ctx context.Context, c nusav1.ReservationsClient) (*nusav1.Reservation, error) {
			return c.Create(ctx, other)
		})
		if status.Code(err) != codes.AlreadyExists {
			t.Errorf("the key with another request: %v", err)
		}
		_, err = r.call(func(ctx context.Context, c nusav1.ReservationsClient) (*nusav1.Reservation, error) {
			return c.Create(ctx, &nusav1.CreateReservationRequest{CpuMilli: 100, MemoryBytes: 1, Constraints: []string{"node.colour =="}})
		})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "constraints") {
			t.Errorf("a wrong constraint: %v", err)
		}
		r.await(one.GetId(), completed, 10*time.Second)
		for range 4 {
			r.create(room(1))
		}
		seen, token := map[string]bool{}, ""
		for range 3 {
			err := f.OnGlobal(func(c *grpc.ClientConn) error {
				page, err := nusav1.NewReservationsClient(c).List(t.Context(), &nusav1.ListReservationsRequest{Limit: 2, PageToken: token})
				for _, x := range page.GetReservations() {
					seen[x.GetId()] = true
				}
				token = page.GetNextPageToken()
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(seen) != 5 || token != "" {
			t.Errorf("three pages have %d reservations, then %q", len(seen), token)
		}
		if _, err := r.get("no-such"); status.Code(err) != codes.NotFound {
			t.Errorf("an unknown id: %v", err)
		}
	})
}
