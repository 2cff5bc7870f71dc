package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"mime"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// spareRequest is the body of POST /spare/prepare.
type spareRequest struct {
	Pool  string `json:"pool"`
	Count int32  `json:"count"`
	// CPU is a number of cores, and Memory a number of MiB, on each host. Neither: whole hosts.
	CPU    float64 `json:"cpu"`
	Memory float64 `json:"memory"`
	// Deadline is a number of seconds.
	Deadline       float64 `json:"deadline"`
	Provisioner    string  `json:"provisioner"`
	CallbackURL    string  `json:"callback_url"`
	CallbackSecret string  `json:"callback_secret"`
}

// spareForm describes the body in errors.
const spareForm = "{pool, count, cpu, memory (MiB), deadline (seconds), provisioner, callback_url, callback_secret}"

// prepareSpare prepares spare hosts.
func prepareSpare(ctx context.Context, c grpc.ClientConnInterface, r *http.Request) (any, error) {
	in, err := readSpare(r)
	if err != nil {
		return nil, err
	}
	var faults []*nusav1.Problem
	for _, x := range []struct {
		field string
		value float64
	}{{"cpu", in.CPU}, {"memory", in.Memory}, {"deadline", in.Deadline}} {
		if !(x.value >= 0 && x.value <= 1<<30) {
			faults = append(faults, &nusav1.Problem{Field: x.field, Message: "must be a number, 0..1073741824"})
		}
	}
	if len(faults) > 0 {
		return nil, invalid(faults...)
	}
	req := &nusav1.PrepareSpareRequest{
		Pool: in.Pool, Count: in.Count, CpuMilli: int64(math.Round(in.CPU * 1000)), MemoryBytes: int64(in.Memory * (1 << 20)), Provisioner: in.Provisioner,
		CallbackUrl: in.CallbackURL, CallbackSecret: in.CallbackSecret, IdempotencyKey: strings.Trim(r.Header.Get("Idempotency-Key"), `"`),
	}
	if in.Deadline > 0 {
		req.Deadline = durationpb.New(time.Duration(in.Deadline * float64(time.Second)))
	}
	made, err := nusav1.NewSparesClient(c).Prepare(ctx, req)
	return map[string]string{"spare_id": made.GetId()}, err
}

// readSpare reads the body of POST /spare/prepare.
func readSpare(r *http.Request) (in spareRequest, err error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != jsonType {
		return in, refusal(http.StatusUnsupportedMediaType, codes.InvalidArgument, "the Content-Type must be "+jsonType)
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return in, unread(err)
	}
	if _, err := doc.Read(data, true); err != nil {
		return in, invalid(syntax(err))
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return in, refusal(http.StatusBadRequest, codes.InvalidArgument, "the body is not "+spareForm+": "+err.Error())
	}
	return in, nil
}
