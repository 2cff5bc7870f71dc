package reservations

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// group is the name of the group of a reservation's job, and of its task. Driver is the driver of the task.
const (
	group  = "hold"
	Driver = "reserve"
)

// Label marks the jobs of reservations.
const Label = "nusa-reservation"

// Bounds of a request.
const (
	defaultWait, maxWait = 30 * time.Second, 24 * time.Hour
	maxKey, maxLabels    = 128, 16
	maxBy, maxText       = 256, 16 << 10
)

// keySpace is the name space of the ids that follow from idempotency keys.
var keySpace = uuid.MustParse("5d2f2c0a-6c0c-4a43-9a33-1f2ab9e5a7c4")

func wrong(field, message string) *nusav1.Problem {
	return &nusav1.Problem{Field: field, Message: message}
}

// checked returns a request with its defaults, and an id. The same idempotency key gives the same id.
func checked(req *nusav1.CreateReservationRequest) (*nusav1.CreateReservationRequest, string, error) {
	out := proto.CloneOf(req)
	var problems []*nusav1.Problem
	check := func(ok bool, field, message string) {
		if !ok {
			problems = append(problems, wrong(field, message))
		}
	}
	if out.Namespace == "" {
		out.Namespace = job.DefaultNamespace
	}
	if out.Pool == "" {
		out.Pool = "default"
	}
	if out.Wait == nil {
		out.Wait = durationpb.New(defaultWait)
	}
	check(out.GetCpuMilli() > 0, "cpu_milli", "must be at least 1")
	check(out.GetMemoryBytes() > 0, "memory_bytes", "must be at least 1")
	wait, ttl := out.GetWait().AsDuration(), out.GetTtl().AsDuration()
	check(out.GetWait().IsValid() && wait >= 0 && wait <= maxWait, "wait", "must be 0..24h")
	check(out.Ttl == nil || out.GetTtl().IsValid() && ttl >= 0 && ttl <= 87600*time.Hour, "ttl", "must be 0..87600h")
	check(len(out.GetLabels()) <= maxLabels, "labels", fmt.Sprintf("at most %d are allowed", maxLabels))
	check(out.GetLabels()[Label] == "", "labels", Label+" is reserved")
	key := out.GetIdempotencyKey()
	check(len(key) <= maxKey && !strings.ContainsRune(key, 0), "idempotency_key", fmt.Sprintf("must be at most %d bytes", maxKey))
	if len(problems) > 0 {
		return nil, "", rpcerr.Invalid(problems...)
	}
	if key != "" {
		return out, IDOf(out.GetNamespace(), key), nil
	}
	id, err := uuid.NewV7() // ids that grow with time keep the list in order
	if err != nil {
		return nil, "", fmt.Errorf("make an id: %w", err)
	}
	return out, id.String(), nil
}

// IDOf returns the id that follows from an idempotency key.
func IDOf(namespace, key string) string {
	return uuid.NewSHA1(keySpace, []byte(namespace+"\x00"+key)).String()
}

// printOf returns a hash of a checked request.
func printOf(req *nusav1.CreateReservationRequest) []byte {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(req) // cannot fail: it was received
	sum := sha256.Sum256(b)
	return sum[:]
}

// jobName returns the name of the job of a reservation. A name begins with a letter.
func jobName(id string) string { return "r-" + id }

// specOf returns the job of a reservation. Only its name depends on the id.
func specOf(req *nusav1.CreateReservationRequest, id string) *nusav1.JobSpec {
	labels := map[string]string{Label: "true"}
	for k, v := range req.GetLabels() {
		labels[k] = v
	}
	task := &nusav1.Task{Driver: Driver, Resources: &nusav1.Resources{CpuMilli: req.GetCpuMilli(), MemoryBytes: req.GetMemoryBytes(), DiskBytes: req.GetDiskBytes()}}
	if d := req.GetTtl().AsDuration(); d > 0 {
		task.Config = &structpb.Struct{Fields: map[string]*structpb.Value{"ttl": structpb.NewStringValue(d.String())}}
	}
	return &nusav1.JobSpec{
		Name: jobName(id), Namespace: req.GetNamespace(), Type: nusav1.JobType_JOB_TYPE_BATCH,
		Priority: req.Priority, Regions: req.GetRegions(), Labels: labels,
		Groups: map[string]*nusav1.Group{group: {
			Pool: req.GetPool(), Dedicated: req.GetDedicated(), Constraints: req.GetConstraints(), Tasks: map[string]*nusav1.Task{group: task},
		}},
	}
}
