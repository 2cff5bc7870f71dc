package rest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/rest"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// fakeReservations returns the reservation that the id names.
type fakeReservations struct {
	nusav1.UnimplementedReservationsServer
	created chan *nusav1.CreateReservationRequest
	tokens  chan string
}

func (f *fakeReservations) Create(ctx context.Context, r *nusav1.CreateReservationRequest) (*nusav1.Reservation, error) {
	f.created <- r
	f.tokens <- strings.Join(metadata.ValueFromIncomingContext(ctx, "authorization"), ",")
	return &nusav1.Reservation{Id: "id-1"}, nil
}

func (f *fakeReservations) Get(_ context.Context, r *nusav1.GetReservationRequest) (*nusav1.Reservation, error) {
	out, ok := map[string]*nusav1.Reservation{
		"new":     {State: nusav1.ReservationState_RESERVATION_STATE_PROCESSING},
		"done":    {State: nusav1.ReservationState_RESERVATION_STATE_COMPLETED, Node: &nusav1.ReservedNode{Name: "bm-1", Address: "10.0.0.7"}},
		"no-room": {State: nusav1.ReservationState_RESERVATION_STATE_FAILED, Message: "No available nodes: not enough cpu"},
		"over":    {State: nusav1.ReservationState_RESERVATION_STATE_EXPIRED, Message: "the ttl has passed"},
	}[r.GetId()]
	if !ok {
		return nil, status.Error(codes.NotFound, "there is no reservation")
	}
	return out, nil
}

func (f *fakeReservations) Release(ctx context.Context, r *nusav1.ReleaseReservationRequest) (*nusav1.Reservation, error) {
	return f.Get(ctx, &nusav1.GetReservationRequest{Id: r.GetId()})
}

// fakeSpares notes the requests.
type fakeSpares struct {
	nusav1.UnimplementedSparesServer
	prepared chan *nusav1.PrepareSpareRequest
}

func (f *fakeSpares) Prepare(_ context.Context, r *nusav1.PrepareSpareRequest) (*nusav1.Spare, error) {
	f.prepared <- r
	return &nusav1.Spare{Id: "spare-1"}, nil
}

// checkSpares makes requests to /spare/prepare.
func checkSpares(t *testing.T, url string, f *fakeSpares) {
	t.Helper()
	got := send(t, "POST", url+"/spare/prepare", `{"pool": "bare", "count": 2, "cpu": 0.5, "memory": 512, "deadline": 90, "provisioner": "lab"}`, jsonHeader, "Idempotency-Key: k2")
	if got.StatusCode != 200 || strings.TrimSpace(got.body) != `{"spare_id":"spare-1"}` {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	want := &nusav1.PrepareSpareRequest{Pool: "bare", Count: 2, CpuMilli: 500, MemoryBytes: 512 << 20, Deadline: durationpb.New(90 * time.Second), Provisioner: "lab", IdempotencyKey: "k2"}
	if req := <-f.prepared; !proto.Equal(req, want) {
		t.Errorf("prepared %v", req)
	}
	for _, c := range []struct{ body, want string }{
		{"{\n\"deadline\": -1}", `"field":"deadline","line":2,"column":1,"message":"must be a number of seconds, 0..1073741824"`},
		{`{"count": 1.5}`, `"message":"must be a whole number of hosts, 0..1073741824"`},
		{`{"count": "1"}`, `"field":"count","line":1`},
		{`{"memory": 1e400}`, `"field":"memory","line":1`},
		{`{"pool": 7}`, `"field":"pool","line":1,"column":2,"message":"must be text"`},
		{`{"pools": "x"}`, "there is no such field: do you mean pool?"},
		{`[]`, `"line":1,"column":1,"message":"the body must be one JSON object"`},
		{`{"pool": "x"`, `"line":1`},
	} {
		if got := send(t, "POST", url+"/spare/prepare", c.body, jsonHeader); got.StatusCode != 400 || !strings.Contains(got.body, c.want) || strings.Contains(got.body, "json: ") {
			t.Errorf("%s: %d %s", c.body, got.StatusCode, got.body)
		}
	}
}

func TestVirtflow(t *testing.T) {
	s, err := serve.Open(t.Context(), serve.Options{Net: network.Host(), HTTPAddr: "127.0.0.1:0", Grace: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeReservations{created: make(chan *nusav1.CreateReservationRequest, 1), tokens: make(chan string, 1)}
	nusav1.RegisterReservationsServer(s, f)
	spares := &fakeSpares{prepared: make(chan *nusav1.PrepareSpareRequest, 1)}
	nusav1.RegisterSparesServer(s, spares)
	if err := rest.Mount(s, rest.Options{Plain: true}); err != nil {
		t.Fatal(err)
	}
	start(t, s)
	url := "http://" + s.HTTPAddr()

	got := send(t, "POST", url+"/schedule", `{"requested_cpu": 2.5, "requested_memory": 2048, "requested_pool": "gpu", "dedicated": true}`, jsonHeader, "Authorization: Bearer abc", "Idempotency-Key: k1")
	if got.StatusCode != 200 || strings.TrimSpace(got.body) != `{"task_id":"id-1"}` {
		t.Fatalf("%d %s", got.StatusCode, got.body)
	}
	want := &nusav1.CreateReservationRequest{CpuMilli: 2500, MemoryBytes: 2 << 30, Pool: "gpu", Dedicated: true, IdempotencyKey: "k1"}
	if req, token := <-f.created, <-f.tokens; !proto.Equal(req, want) || token != "Bearer abc" {
		t.Errorf("created %v with %q", req, token)
	}
	got = send(t, "POST", url+"/v1/reservations", `{"cpuMilli": "1", "memoryBytes": "1"}`, jsonHeader, "Idempotency-Key: k2")
	if req := <-f.created; <-f.tokens != "" || got.StatusCode != 200 || req.GetIdempotencyKey() != "k2" || req.GetCpuMilli() != 1 {
		t.Errorf("%d: a header of a request that is the body became %v", got.StatusCode, req)
	}
	for _, c := range []struct {
		verb, path, body string
		status           int
		want             string
	}{
		{"GET", "/result/new", "", 200, `{"status":"processing"}`},
		{"GET", "/result/done", "", 200, `{"status":"completed","name":"bm-1","ip":"10.0.0.7"}`},
		{"GET", "/result/no-room", "", 200, `{"status":"failed","error":"No available nodes"}`},
		{"GET", "/result/over", "", 200, `{"status":"failed","error":"the ttl has passed"}`},
		{"GET", "/result/nothing", "", 404, `NOT_FOUND`},
		{"DELETE", "/result/done", "", 200, `{"status":"released"}`},
		{"DELETE", "/result/nothing", "", 404, `NOT_FOUND`},
		{"POST", "/schedule", `{"requested_cpu": 0, "requested_memory": 1e300}`, 400, `requested_cpu`},
		{"POST", "/schedule", `{"requested_cpu": 1, "requested_memory": -1}`, 400, `requested_memory`},
		{"POST", "/schedule", "{\n\"requested_cpus\": 1}", 400, `"field":"requested_cpus","line":2,"column":1,"message":"there is no such field: do you mean requested_cpu?"`},
		{"POST", "/schedule", `{"requested_cpu": 1}`, 400, `"field":"requested_memory","message":"is missing"`},
		{"POST", "/schedule", `{"requested_cpu": "two", "requested_memory": 1e400}`, 400, `requested_cpu: must be a number of cores`},
		{"POST", "/schedule", `{"requested_cpu": 1, "requested_memory": 1, "dedicated": 1}`, 400, `must be true or false`},
		{"POST", "/schedule", `{"requested_cpu": 1, "requested_memory": 1, "requested_pool": 7}`, 400, `must be the name of a pool`},
		{"POST", "/schedule", `{`, 400, `"line":1`},
		{"POST", "/schedule", `[]`, 400, `must be one JSON object`},
		{"POST", "/schedule", `{"requested_cpu": 1, "requested_memory": 1} {}`, 400, `"line":1`},
		{"GET", "/schedule", "", 405, `"code":"UNIMPLEMENTED"`},
		{"PUT", "/result/new", "", 405, `this path takes GET, DELETE`},
		{"POST", "/schedule", `{"requested_pool": "` + strings.Repeat("x", 64<<10) + `"}`, 413, `65536`},
	} {
		got := send(t, c.verb, url+c.path, c.body, jsonHeader)
		if got.StatusCode != c.status || !strings.Contains(got.body, c.want) {
			t.Errorf("%s %s %.60s: %d %s", c.verb, c.path, c.body, got.StatusCode, got.body)
		}
	}
	checkSpares(t, url, spares)
	if got := send(t, "POST", url+"/schedule", `{"requested_cpu": 1, "requested_memory": 1}`, "Content-Type: text/plain"); got.StatusCode != 415 {
		t.Errorf("a wrong content type: %d %s", got.StatusCode, got.body)
	}
}
