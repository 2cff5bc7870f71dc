package spares

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/nusa-scheduler/nusa/internal/lazyregexp"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Bounds and defaults of requests.
const (
	maxCount                              = 64
	minDeadline, maxDeadline, defDeadline = time.Second, 24 * time.Hour, 30 * time.Minute
	minHold, maxHold, defHold             = time.Minute, 720 * time.Hour, 24 * time.Hour
	minTimeout, maxTimeout                = time.Second, 5 * time.Minute
	defaultTimeout                        = 15 * time.Second
	minJoin, maxJoin, defaultJoin         = time.Second, 24 * time.Hour, 15 * time.Minute
	maxRegions, maxLabels, maxConstraints = 16, 15, 16
	maxKey, maxRef, maxSecret             = 128, 255, 1024
	maxRequest                            = 32 << 10
)

var namePattern = lazyregexp.New(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// keySpace is the name space of the ids that follow from idempotency keys.
var keySpace = uuid.MustParse("2b1f6a52-8a1e-4d0b-9f6e-0f6f5b0c7a11")

// faults are the problems of a request.
type faults []*nusav1.Problem

// check adds a problem unless the field is right.
func (f *faults) check(ok bool, field, format string, args ...any) {
	if !ok {
		*f = append(*f, &nusav1.Problem{Field: field, Message: fmt.Sprintf(format, args...)})
	}
}

// span checks a duration, and returns it or the default.
func (f *faults) span(d *durationpb.Duration, field string, least, most, otherwise time.Duration) *durationpb.Duration {
	if d == nil {
		return durationpb.New(otherwise)
	}
	f.check(d.IsValid() && d.AsDuration() >= least && d.AsDuration() <= most, field, "must be %s..%s", job.FormatDuration(least), job.FormatDuration(most))
	return d
}

// whole reports whether a request is for whole hosts.
func whole(req *nusav1.PrepareSpareRequest) bool {
	return req.GetCpuMilli() == 0 && req.GetMemoryBytes() == 0 && req.GetDiskBytes() == 0
}

// checked returns a request with its defaults, with its secret, and the id of the spare. The same
// idempotency key gives the same id.
func checked(req *nusav1.PrepareSpareRequest, policy *webhook.Policy) (*nusav1.PrepareSpareRequest, string, error) {
	out := proto.CloneOf(req)
	f := &faults{}
	if out.Namespace == "" {
		out.Namespace = job.DefaultNamespace
	}
	if out.Pool == "" {
		out.Pool = "default"
	}
	if out.Count == 0 {
		out.Count = 1
	}
	f.check(out.Count >= 1 && out.Count <= maxCount, "count", "must be 1..%d", maxCount)
	if !whole(out) {
		f.check(out.CpuMilli > 0, "cpu_milli", "must be at least 1, or leave out all resources for whole hosts")
		f.check(out.MemoryBytes > 0, "memory_bytes", "must be at least 1, or leave out all resources for whole hosts")
		f.check(out.DiskBytes >= 0, "disk_bytes", "must not be negative")
	}
	out.Deadline = f.span(out.Deadline, "deadline", minDeadline, maxDeadline, defDeadline)
	out.Hold = f.span(out.Hold, "hold", minHold, maxHold, defHold)
	f.check(len(out.GetRegions()) <= maxRegions, "regions", "at most %d are allowed", maxRegions)
	f.check(len(out.GetConstraints()) <= maxConstraints, "constraints", "at most %d are allowed", maxConstraints)
	f.check(len(out.GetLabels()) <= maxLabels, "labels", "at most %d are allowed", maxLabels)
	f.check(!strings.ContainsRune(out.GetIdempotencyKey(), 0) && len(out.GetIdempotencyKey()) <= maxKey, "idempotency_key", "must be at most %d bytes", maxKey)
	f.check(proto.Size(out) <= maxRequest, "constraints", "the request has %d bytes, at most %d are allowed", proto.Size(out), maxRequest)
	if out.GetCallbackUrl() != "" {
		err := policy.CheckURL(out.GetCallbackUrl())
		f.check(err == nil, "callback_url", "%v", err)
		_, err = webhook.ParseSecret(out.GetCallbackSecret())
		f.check(err == nil, "callback_secret", "%v", err)
	} else {
		f.check(out.GetCallbackSecret() == "", "callback_secret", "is only for a callback_url")
	}
	if len(*f) > 0 {
		return nil, "", rpcerr.Invalid(*f...)
	}
	if key := out.GetIdempotencyKey(); key != "" {
		return out, uuid.NewSHA1(keySpace, []byte(out.GetNamespace()+"\x00"+key)).String(), nil
	}
	id, err := uuid.NewV7() // ids that grow with time keep the list in order
	if err != nil {
		return nil, "", fmt.Errorf("make an id: %w", err)
	}
	return out, id.String(), nil
}

// printOf returns a hash of a checked request.
func printOf(req *nusav1.PrepareSpareRequest) []byte {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(req) // cannot fail: it was received
	sum := sha256.Sum256(b)
	return sum[:]
}

// checkProvisioner returns the provisioner of a request in the form that is stored, and its secret.
func checkProvisioner(req *nusav1.SetProvisionerRequest, kept *nusav1.ProvisionerRecord, policy *webhook.Policy) (*nusav1.ProvisionerRecord, error) {
	f := &faults{}
	p := proto.CloneOf(req.GetProvisioner())
	if p == nil {
		p = &nusav1.Provisioner{}
	}
	f.check(namePattern().MatchString(p.GetName()), "provisioner.name", "%q: a name has lower-case letters, digits and hyphens, at most 63", p.GetName())
	p.Timeout = f.span(p.Timeout, "provisioner.timeout", minTimeout, maxTimeout, defaultTimeout)
	p.JoinTimeout = f.span(p.JoinTimeout, "provisioner.join_timeout", minJoin, maxJoin, defaultJoin)
	secret := strings.TrimSpace(req.GetSecret())
	if secret == "" && p.GetCommand() == nil {
		secret = kept.GetSecret()
		f.check(secret == "" || addressOf(p) == addressOf(kept.GetProvisioner()), "secret", "the address or the kind changes: give the secret again")
	}
	f.check(len(secret) <= maxSecret, "secret", "must be at most %d bytes", maxSecret)
	where := func(field, raw string) {
		err := policy.CheckURL(raw)
		f.check(err == nil, "provisioner."+field+".url", "%v", err)
	}
	switch kind := p.GetKind().(type) {
	case *nusav1.Provisioner_Webhook:
		where("webhook", kind.Webhook.GetUrl())
		_, err := webhook.ParseSecret(secret)
		f.check(err == nil, "secret", "%v", err)
	case *nusav1.Provisioner_Gitlab:
		where("gitlab", kind.Gitlab.GetUrl())
		ref := kind.Gitlab.GetRef()
		f.check(ref != "" && len(ref) <= maxRef, "provisioner.gitlab.ref", "must have 1..%d bytes", maxRef)
		f.check(token(secret), "secret", "give the trigger token of the project, on one line")
	case *nusav1.Provisioner_Awx:
		where("awx", kind.Awx.GetUrl())
		f.check(token(secret), "secret", "give an OAuth token of AWX, on one line")
	case *nusav1.Provisioner_Command:
		f.check(namePattern().MatchString(kind.Command.GetProgram()), "provisioner.command.program", "%q: give a name that the global servers allow with --spare-command NAME=PATH", kind.Command.GetProgram())
		f.check(req.GetSecret() == "", "secret", "a program has none")
		secret = ""
	default:
		f.check(false, "provisioner.kind", "give one of webhook, command, gitlab and awx")
	}
	if len(*f) > 0 {
		return nil, rpcerr.Invalid(*f...)
	}
	return &nusav1.ProvisionerRecord{Provisioner: p, Secret: secret}, nil
}

// addressOf returns where a provisioner is called, with its kind. A stored secret goes nowhere else, because who
// may set a provisioner may not know its secret.
func addressOf(p *nusav1.Provisioner) string {
	switch kind := p.GetKind().(type) {
	case *nusav1.Provisioner_Webhook:
		return "webhook " + kind.Webhook.GetUrl()
	case *nusav1.Provisioner_Gitlab:
		return "gitlab " + kind.Gitlab.GetUrl()
	case *nusav1.Provisioner_Awx:
		return "awx " + kind.Awx.GetUrl()
	}
	return ""
}

// token reports whether a text can be a token in a header.
func token(text string) bool {
	return text != "" && !slices.ContainsFunc([]byte(text), func(c byte) bool { return c <= ' ' || c > '~' })
}
