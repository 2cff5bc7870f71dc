package reservations

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func TestDecide(t *testing.T) {
	const (
		none, complete = nusav1.JobState_JOB_STATE_UNSPECIFIED, nusav1.JobState_JOB_STATE_COMPLETE
		processing     = nusav1.ReservationState_RESERVATION_STATE_PROCESSING
		completed      = nusav1.ReservationState_RESERVATION_STATE_COMPLETED
		failed         = nusav1.ReservationState_RESERVATION_STATE_FAILED
		released       = nusav1.ReservationState_RESERVATION_STATE_RELEASED
		expired        = nusav1.ReservationState_RESERVATION_STATE_EXPIRED
	)
	for _, c := range []struct {
		name string
		f    facts
		want verdict
	}{
		{"waits", facts{state: processing, wait: time.Minute, waited: 59 * time.Second, refused: true}, verdict{}},
		{"has waited", facts{state: processing, wait: time.Minute, waited: time.Minute, why: "no cpu"}, verdict{state: failed, message: "No available nodes: no cpu"}},
		{"no wait, refused", facts{state: processing, refused: true}, verdict{state: failed, message: "No available nodes"}},
		{"no wait, undecided", facts{state: processing, waited: undecided - 1}, verdict{}},
		{"no wait, never decided", facts{state: processing, waited: undecided}, verdict{state: failed, message: "No available nodes"}},
		{"runs at the last moment", facts{state: processing, wait: time.Minute, waited: time.Minute, region: "a"}, verdict{locate: true}},
		{"runs", facts{state: completed, region: "a"}, verdict{}},
		{"runs and has changed", facts{state: completed, region: "a", changed: true}, verdict{locate: true}},
		{"is moved", facts{state: completed, wait: 1, waited: 2, refused: true}, verdict{}},
		{"ttl", facts{state: completed, ended: complete}, verdict{state: expired, message: "the ttl has passed"}},
		{"ttl before it was seen", facts{state: processing, ended: complete}, verdict{state: expired, message: "the ttl has passed"}},
		{"instance failed", facts{state: completed, ended: nusav1.JobState_JOB_STATE_FAILED, why: "disk full"}, verdict{state: failed, message: "the instance has failed: disk full"}},
		{"stopped", facts{state: completed, stopped: true, region: "a"}, verdict{state: released, message: "the job was stopped"}},
		{"removed", facts{state: processing, gone: true}, verdict{state: released, message: "the job was removed"}},
		{"over", facts{state: released, gone: true}, verdict{}},
		{"failed before", facts{state: failed, ended: none, region: "a"}, verdict{}},
	} {
		if got := decide(c.f); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestChecked(t *testing.T) {
	good := func() *nusav1.CreateReservationRequest {
		return &nusav1.CreateReservationRequest{CpuMilli: 500, MemoryBytes: 1 << 20}
	}
	req, id, err := checked(good())
	if err != nil || uuid.Validate(id) != nil || req.GetNamespace() != "default" || req.GetPool() != "default" || req.GetWait().AsDuration() != defaultWait {
		t.Errorf("%v, %s, %v", req, id, err)
	}
	for field, change := range map[string]func(*nusav1.CreateReservationRequest){
		"cpu_milli":       func(r *nusav1.CreateReservationRequest) { r.CpuMilli = 0 },
		"memory_bytes":    func(r *nusav1.CreateReservationRequest) { r.MemoryBytes = -1 },
		"wait":            func(r *nusav1.CreateReservationRequest) { r.Wait = durationpb.New(25 * time.Hour) },
		"ttl":             func(r *nusav1.CreateReservationRequest) { r.Ttl = durationpb.New(-1) },
		"labels":          func(r *nusav1.CreateReservationRequest) { r.Labels = map[string]string{Label: "x"} },
		"idempotency_key": func(r *nusav1.CreateReservationRequest) { r.IdempotencyKey = strings.Repeat("k", maxKey+1) },
	} {
		r := good()
		change(r)
		_, _, err := checked(r)
		if p := rpcerr.Problems(err); len(p) != 1 || p[0].GetField() != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// FuzzCreate: every request that is accepted makes a valid job.
func FuzzCreate(f *testing.F) {
	f.Add([]byte{}, "k", int64(100), int64(1<<20), int64(time.Minute))
	seed, _ := proto.Marshal(&nusav1.CreateReservationRequest{Pool: "gpu", Dedicated: true, Constraints: []string{"node.cpu_cores > 2"}, Labels: map[string]string{"a": "b"}})
	f.Add(seed, "", int64(1), int64(1), int64(0))
	f.Fuzz(func(t *testing.T, raw []byte, key string, cpu, memory, ttl int64) {
		in := &nusav1.CreateReservationRequest{}
		if proto.Unmarshal(raw, in) != nil {
			return
		}
		in.IdempotencyKey, in.CpuMilli, in.MemoryBytes, in.Ttl = key, cpu, memory, durationpb.New(time.Duration(ttl))
		req, id, err := checked(in)
		if err != nil {
			return
		}
		spec := specOf(req, id)
		job.Default(spec)
		err = job.Validate(spec)
		again, sameID, _ := checked(in)
		if key != "" && (sameID != id || !proto.Equal(again, req)) {
			t.Fatalf("the key %q made %s and %s", key, id, sameID)
		}
		if err != nil && len(rpcerr.Problems(problemsOf(err))) == 0 {
			t.Fatalf("the job of %v is refused without a problem: %v", req, err)
		}
	})
}

// TestRetry: the pauses of a region that does not answer double up to a bound.
func TestRetry(t *testing.T) {
	var r retry
	var got []time.Duration
	for range 8 {
		r = r.again(time.Second)
		got = append(got, r.pause)
		if r.until != time.Second+r.pause {
			t.Fatalf("%+v", r)
		}
	}
	const ms = time.Millisecond
	if want := []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
