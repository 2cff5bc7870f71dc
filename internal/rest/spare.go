package rest

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// spareRequest is the body of POST /spare/prepare: see spareFields.
type spareRequest struct {
	Pool  string
	Count int32
	// CPU is a number of cores, and Memory a number of MiB, on each host. Neither: whole hosts.
	CPU, Memory float64
	// Deadline is a number of seconds.
	Deadline                                 float64
	Provisioner, CallbackURL, CallbackSecret string
}

// spareFields are the fields of spareRequest.
var spareFields = []string{"pool", "count", "cpu", "memory", "deadline", "provisioner", "callback_url", "callback_secret"}

// maxAmount bounds the numbers of a spareRequest.
const maxAmount = 1 << 30

// prepareSpare prepares spare hosts.
func prepareSpare(ctx context.Context, c grpc.ClientConnInterface, r *http.Request) (any, error) {
	var in spareRequest
	if err := readObject(r, spareFields, nil, in.set); err != nil {
		return nil, err
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

// set sets a field, or says why it cannot have the value.
func (in *spareRequest) set(name string, v *doc.Node) string {
	number, err := strconv.ParseFloat(v.Text, 64)
	amount := v.Kind == doc.Number && err == nil && number >= 0 && number <= maxAmount
	texts := map[string]*string{"pool": &in.Pool, "provisioner": &in.Provisioner, "callback_url": &in.CallbackURL, "callback_secret": &in.CallbackSecret}
	numbers := map[string]*float64{"cpu": &in.CPU, "memory": &in.Memory, "deadline": &in.Deadline}
	units := map[string]string{"cpu": "cores on each host", "memory": "MiB on each host", "deadline": "seconds"}
	switch {
	case v.Kind == doc.Null:
	case texts[name] != nil:
		*texts[name] = v.Text
		if v.Kind != doc.String {
			return "must be text"
		}
	case numbers[name] != nil:
		*numbers[name] = number
		if !amount {
			return fmt.Sprintf("must be a number of %s, 0..%d", units[name], maxAmount)
		}
	case name == "count":
		in.Count = int32(min(max(number, 0), maxAmount))
		if !amount || number != math.Trunc(number) {
			return fmt.Sprintf("must be a whole number of hosts, 0..%d", maxAmount)
		}
	}
	return ""
}
