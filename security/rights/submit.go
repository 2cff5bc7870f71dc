package rights

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nusa-scheduler/nusa/internal/expr"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/confine"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/authz"
)

// Submission is a job that a caller wants to submit or to plan.
type Submission struct {
	Namespace, Name string
	// Region is that of a region's own job, and empty for a job of the federation.
	Region string
	// Encoded is the spec with its defaults. It may lack the name.
	Encoded []byte
	// Asked remembers what the spec asks for.
	Asked *Asked
}

// Asked remembers what a spec asks for, between the submits of jobs that differ only in their names.
// The zero value remembers nothing yet.
type Asked struct {
	job     atomic.Pointer[expr.Job]
	refs    atomic.Pointer[[]string]
	verdict atomic.Pointer[verdict]
}

// verdict is what a namespace says about a spec.
type verdict struct {
	of     *nusav1.Namespace
	region string
	err    error
}

// decode returns the spec.
func (s *Submission) decode() (*nusav1.JobSpec, error) {
	spec := &nusav1.JobSpec{}
	if err := proto.Unmarshal(s.Encoded, spec); err != nil {
		return nil, fmt.Errorf("the job cannot be read: %w", err)
	}
	return spec, nil
}

// job returns what conditions see of the job.
func (s *Submission) job() (*expr.Job, error) {
	found := s.Asked.job.Load()
	if found == nil {
		spec, err := s.decode()
		if err != nil {
			return nil, err
		}
		found = expr.JobFromProto(spec)
		for name, step := range job.Steps(spec) { // a condition sees the groups of all steps
			for _, g := range expr.JobFromProto(step).Groups {
				g.Name = name + "/" + g.Name
				found.Groups = append(found.Groups, g)
			}
		}
		s.Asked.job.Store(found)
	}
	named := *found
	named.Namespace, named.Name = s.Namespace, s.Name
	return &named, nil
}

// refs returns the jobs that the steps of a workflow run.
func (s *Submission) refs() ([]string, error) {
	if found := s.Asked.refs.Load(); found != nil {
		return *found, nil
	}
	var out []string
	if hasField(s.Encoded, "workflow") {
		spec, err := s.decode()
		if err != nil {
			return nil, err
		}
		out = job.Refs(spec)
	}
	s.Asked.refs.Store(&out)
	return out, nil
}

// hasField reports whether an encoded spec has a field. It does not decode the spec.
func hasField(encoded []byte, name protoreflect.Name) bool {
	want := (&nusav1.JobSpec{}).ProtoReflect().Descriptor().Fields().ByName(name).Number()
	for len(encoded) > 0 {
		field, _, n := protowire.ConsumeField(encoded)
		if n < 0 || field == want {
			return n >= 0
		}
		encoded = encoded[n:]
	}
	return false
}

// Submit returns an error if the caller may not submit or plan a job, or if the namespace of the job
// does not allow what the job asks for. present returns who may do what now, for a server without
// identities.
func Submit(ctx context.Context, present func() *Set, s Submission) error {
	var set *Set
	if call := Of(ctx); call != nil {
		if err := call.submit(&s); err != nil {
			return err
		}
		set, _ = call.Standing()
	} else {
		set = present()
	}
	if set == nil {
		return status.Error(codes.Unavailable, "this server cannot read now what the namespaces allow")
	}
	of := set.namespaces[s.Namespace]
	if of == nil {
		return nil
	}
	if v := s.Asked.verdict.Load(); v != nil && v.of == of && v.region == s.Region {
		return v.err
	}
	spec, err := s.decode()
	if err != nil {
		return err
	}
	v := &verdict{of: of, region: s.Region}
	if problems := confine.Confine(spec, of, s.Region); len(problems) > 0 {
		v.err = rpcerr.Invalid(problems.Proto()...)
	}
	s.Asked.verdict.Store(v)
	return v.err
}

// Plan is Submit for a spec that is not encoded, with its defaults.
func Plan(ctx context.Context, present func() *Set, spec *nusav1.JobSpec, region string) error {
	encoded, err := proto.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the job: %w", err)
	}
	return Submit(ctx, present, Submission{Namespace: spec.GetNamespace(), Name: spec.GetName(), Region: region, Encoded: encoded, Asked: &Asked{}})
}

// MaySubmit returns an error if the caller may submit or plan no job of a name, whatever it asks for.
func MaySubmit(ctx context.Context, namespace, name string) error {
	return Of(ctx).maySubmit(namespace, "", name)
}

// MaySubmitIn is MaySubmit for one of a region's own jobs. The region decides about what the job asks for.
func MaySubmitIn(ctx context.Context, namespace, region, name string) error {
	c := Of(ctx)
	if c != nil {
		c.checked.Store(true)
	}
	return c.maySubmit(namespace, region, name)
}

func (c *Call) maySubmit(namespace, region, name string) error {
	if c == nil {
		return nil
	}
	namespace = cmp.Or(namespace, job.DefaultNamespace)
	set, who := c.Standing()
	a := c.action(namespace, region, name)
	if set.Allowed(who, a) || set.Decide(who, a).Depends {
		return nil
	}
	return c.Refuse(a)
}

// MaySubmitEncoded is MaySubmit for an encoded spec that is not valid. A caller that could not submit
// the job anyway does not learn why it is not valid, for example which regions there are.
func MaySubmitEncoded(ctx context.Context, raw []byte) error {
	spec := &nusav1.JobSpec{}
	if Of(ctx) == nil || proto.Unmarshal(raw, spec) != nil {
		return nil
	}
	return MaySubmit(ctx, spec.GetNamespace(), spec.GetName())
}

// submit decides a submit or a plan.
func (c *Call) submit(s *Submission) error {
	c.checked.Store(true)
	set, who := c.Standing()
	a := c.action(s.Namespace, s.Region, s.Name)
	if !set.Allowed(who, a) { // perhaps a condition reads the job
		asked := *s
		a.Request = &asked
		if !set.Allowed(who, a) {
			return c.Refuse(a)
		}
	}
	refs, err := s.refs()
	if err != nil {
		return err
	}
	for _, ref := range refs { // the steps of a workflow run these jobs
		a := authz.Action{Verb: "dispatch", Kind: c.Kind, Namespace: s.Namespace, Region: a.Region, Name: ref}
		if !set.Allowed(who, a) {
			return c.Refuse(a)
		}
	}
	if c.SubmitLimit == nil {
		return nil
	}
	return TooMany(who, "submits", c.SubmitLimit())
}

// TooMany returns the error of a principal that must wait for its next call. wait is 0 if it need not.
func TooMany(who authz.Principal, what string, wait time.Duration) error {
	if wait <= 0 {
		return nil
	}
	return rpcerr.Error{
		Code: codes.ResourceExhausted, RetryAfter: wait,
		Message: fmt.Sprintf("%s makes too many %s: try again in %s", who.Name, what, wait.Round(time.Millisecond)),
	}.Err()
}
