package intakes

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/broker"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// maxReason bounds the reason of a dead letter, in bytes.
const maxReason = 800

// request returns what a message asks for. bad is why it can never be taken, or "". id is that of the
// intake's record. It is in the idempotency key, so that an intake that was created again knows nothing of the
// messages of the earlier one, and that nobody else can use the key first.
func request(in *nusav1.Intake, id string, d *broker.Delivery) (req *nusav1.SubmitRequest, bad string) {
	switch {
	case d.ID == "":
		return nil, "the message has no message-id: without one, a repetition looks like a new message"
	case d.TooLarge:
		return nil, fmt.Sprintf("the body is greater than %d bytes", broker.MaxBody)
	}
	spec, err := job.Parse(d.Body, "message")
	if err != nil {
		return nil, short(err.Error())
	}
	if ns := spec.GetNamespace(); ns != "" && ns != in.GetNamespace() {
		return nil, fmt.Sprintf("namespace: the job is for %q, and the intake is for %q", ns, in.GetNamespace())
	}
	spec.Namespace = in.GetNamespace()
	hash := sha256.Sum256([]byte(id + "\x00" + d.ID))
	return &nusav1.SubmitRequest{Spec: spec, IdempotencyKey: "intake-" + hex.EncodeToString(hash[:])}, ""
}

// verdict is what follows from the result of a submit.
type verdict int

const (
	// taken: the job is stored.
	taken verdict = iota
	// hold: the message waits, and another attempt follows.
	hold
	// bury: the message can never be taken.
	bury
)

// decide returns what follows from the result of a submit. A full system, a lost election, and a fault of the
// intake itself concern every message: the message waits. A fault of the message is a dead letter, for example
// a job that cannot become one of another type.
func decide(err error) verdict {
	switch status.Code(err) {
	case codes.OK:
		return taken
	case codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.OutOfRange, codes.PermissionDenied, codes.FailedPrecondition:
		return bury
	}
	return hold
}

// reasonOf returns the text of an error, with its problems.
func reasonOf(err error) string {
	var parts []string
	for _, p := range rpcerr.Problems(err) {
		parts = append(parts, p.GetField()+": "+p.GetMessage())
	}
	if len(parts) > 0 {
		return short(strings.Join(parts, "; "))
	}
	return short(status.Convert(err).Message())
}

func short(s string) string {
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}
