package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// The API of virtflow: three paths that reserve a host for a virtual machine, and one that prepares spare
// hosts (spare.go). They call the services Reservations and Spares, with the rights of the caller and in
// the namespace default.

// noNodes begins the message of a reservation without room, and is what virtflow returns then.
const noNodes = "No available nodes"

// maxSchedule bounds the body of a request, in bytes.
const maxSchedule = 64 << 10

// scheduleRequest is the body of POST /schedule: see scheduleFields.
type scheduleRequest struct {
	// CPU is a number of cores, and Memory a number of MiB.
	CPU, Memory float64
	Pool        string
	Dedicated   bool
}

// scheduleResult is the answer of GET and DELETE /result/{task_id}.
type scheduleResult struct {
	Status string `json:"status"`
	Name   string `json:"name,omitempty"`
	IP     string `json:"ip,omitempty"`
	Error  string `json:"error,omitempty"`
}

// mountVirtflow adds the paths.
func mountVirtflow(a *api, mux *http.ServeMux) {
	add := func(pattern, name string, do func(context.Context, grpc.ClientConnInterface, *http.Request) (any, error)) {
		op := &operation{name: "Virtflow." + name}
		mux.Handle(pattern, a.guarded(http.HandlerFunc(func(plain http.ResponseWriter, r *http.Request) {
			w := newWriter(plain, r)
			defer func() { a.counted(op, w) }()
			defer w.end()
			out, p := virtflow(w, r, do)
			if p != nil {
				w.fail(p, r)
				return
			}
			w.Header().Set("Content-Type", jsonType)
			w.Header().Set("Cache-Control", "no-store")
			_, _ = w.Write(out) // the client may be gone
		})))
	}
	refuse := func(path, verbs string) {
		mux.Handle(path, a.guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", verbs)
			refusal(http.StatusMethodNotAllowed, codes.Unimplemented, "this path takes "+verbs).write(w, r)
		})))
	}
	refuse("/schedule", "POST")
	refuse("/result/{task_id}", "GET, DELETE")
	add("POST /schedule", "Schedule", schedule)
	add("GET /result/{task_id}", "Result", func(ctx context.Context, c grpc.ClientConnInterface, r *http.Request) (any, error) {
		found, err := nusav1.NewReservationsClient(c).Get(ctx, &nusav1.GetReservationRequest{Id: r.PathValue("task_id")})
		return resultOf(found), err
	})
	add("DELETE /result/{task_id}", "Release", func(ctx context.Context, c grpc.ClientConnInterface, r *http.Request) (any, error) {
		_, err := nusav1.NewReservationsClient(c).Release(ctx, &nusav1.ReleaseReservationRequest{Id: r.PathValue("task_id")})
		return scheduleResult{Status: "released"}, err
	})
	refuse("/spare/prepare", "POST")
	add("POST /spare/prepare", "PrepareSpare", prepareSpare)
	add("GET /v1/services:http_sd", "Targets", targets) // of Prometheus, not of virtflow
}

// virtflow makes the call of a request, and returns the body of the response. A caller whom the server does
// not know learns nothing about the body: the call would have said so, but a wrong body makes no call.
func virtflow(w *writer, r *http.Request, do func(context.Context, grpc.ClientConnInterface, *http.Request) (any, error)) ([]byte, *problem) {
	auth, p := credential(r)
	if p != nil {
		return nil, p
	}
	conn, err := serve.Conn(r)
	if err != nil {
		return nil, problemOf(err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), unaryLimit)
	defer cancel()
	if auth != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", auth)
	}
	out, err := answer(ctx, w, r, conn, do)
	var refused *problem
	if errors.As(err, &refused) {
		if p := unknownCaller(ctx, conn); p != nil {
			return nil, p
		}
		return nil, refused
	}
	if err != nil {
		return nil, problemOf(err)
	}
	text, err := json.Marshal(out)
	if err != nil {
		return nil, problemOf(err)
	}
	return append(text, '\n'), nil
}

// answer reads the body of a request and makes its call. The error is a problem if the body is wrong.
func answer(ctx context.Context, w *writer, r *http.Request, conn grpc.ClientConnInterface, do func(context.Context, grpc.ClientConnInterface, *http.Request) (any, error)) (any, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxSchedule))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, tooLarge(maxSchedule)
	case err != nil:
		return nil, unread(err)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	_ = w.control.SetReadDeadline(time.Time{}) // the deadline of the whole request would end the call
	return do(ctx, conn, r)
}

// Error makes a problem an error.
func (p *problem) Error() string { return p.Detail }

// schedule makes a reservation.
func schedule(ctx context.Context, c grpc.ClientConnInterface, r *http.Request) (any, error) {
	req, err := readSchedule(r)
	if err != nil {
		return nil, err
	}
	req.IdempotencyKey = strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
	made, err := nusav1.NewReservationsClient(c).Create(ctx, req)
	return map[string]string{"task_id": made.GetId()}, err
}

// readSchedule reads the body of POST /schedule.
func readSchedule(r *http.Request) (*nusav1.CreateReservationRequest, error) {
	var in scheduleRequest
	if err := readObject(r, scheduleFields, scheduleFields[:2], in.set); err != nil {
		return nil, err
	}
	return &nusav1.CreateReservationRequest{
		CpuMilli: int64(math.Round(in.CPU * 1000)), MemoryBytes: int64(in.Memory * (1 << 20)), Pool: in.Pool, Dedicated: in.Dedicated,
	}, nil
}

// scheduleFields are the fields of scheduleRequest.
var scheduleFields = []string{"requested_cpu", "requested_memory", "requested_pool", "dedicated"}

// readObject reads a JSON object that no proto describes. set sets a field, or says why the field cannot
// have the value. The faults name the fields and their lines.
func readObject(r *http.Request, known, required []string, set func(name string, v *doc.Node) string) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != jsonType {
		return refusal(http.StatusUnsupportedMediaType, codes.InvalidArgument, "the Content-Type must be "+jsonType)
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return unread(err)
	}
	if faults := decodeObject(data, known, required, set); len(faults) > 0 {
		return invalid(faults...)
	}
	return nil
}

func decodeObject(data []byte, known, required []string, set func(name string, v *doc.Node) string) (faults []*nusav1.Problem) {
	trees, err := doc.Read(data, true)
	switch {
	case err != nil:
		return []*nusav1.Problem{syntax(err)}
	case len(trees) != 1 || trees[0].Kind != doc.Map:
		return []*nusav1.Problem{{Line: 1, Column: 1, Message: "the body must be one JSON object"}}
	}
	seen := map[string]bool{}
	for _, e := range trees[0].Entries {
		seen[e.Key] = true
		why := ""
		if slices.Contains(known, e.Key) {
			why = set(e.Key, e.Value)
		} else {
			why = unknownOf(e.Key, slices.Clone(known))
		}
		if why != "" && len(faults) < maxFaults {
			faults = append(faults, &nusav1.Problem{Field: e.Key, Line: int32(e.Line), Column: int32(e.Column), Message: why})
		}
	}
	for _, name := range required {
		if !seen[name] {
			faults = append(faults, &nusav1.Problem{Field: name, Message: "is missing"})
		}
	}
	return faults
}

// set sets a field, or says why it cannot have the value.
func (in *scheduleRequest) set(name string, v *doc.Node) string {
	number, err := strconv.ParseFloat(v.Text, 64)
	isNumber := v.Kind == doc.Number && err == nil
	switch name {
	case "requested_cpu":
		in.CPU = number
		if !isNumber || number < 0.001 || number > 10_000 {
			return "must be a number of cores, 0.001..10000"
		}
	case "requested_memory":
		in.Memory = number
		if !isNumber || number < 1 || number > 1<<30 {
			return "must be a number of MiB, 1..1073741824"
		}
	case "requested_pool":
		in.Pool = v.Text
		if v.Kind != doc.String && v.Kind != doc.Null {
			return "must be the name of a pool"
		}
	case "dedicated":
		in.Dedicated = v.Text == "true"
		if v.Kind != doc.Bool && v.Kind != doc.Null {
			return "must be true or false"
		}
	}
	return ""
}

// resultOf returns a reservation as virtflow shows it. A reservation that was given back or has expired
// has failed for virtflow.
func resultOf(r *nusav1.Reservation) scheduleResult {
	switch r.GetState() {
	case nusav1.ReservationState_RESERVATION_STATE_PROCESSING:
		return scheduleResult{Status: "processing"}
	case nusav1.ReservationState_RESERVATION_STATE_COMPLETED:
		return scheduleResult{Status: "completed", Name: r.GetNode().GetName(), IP: r.GetNode().GetAddress()}
	}
	text := r.GetMessage()
	if strings.HasPrefix(text, noNodes) {
		text = noNodes
	}
	return scheduleResult{Status: "failed", Error: text}
}
