package cli

import (
	"fmt"
	"strings"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// MaxNamed is the greatest number of names that an error lists.
const MaxNamed = 8

// Ref parses NAME, NAMESPACE/NAME or NAME@REGION. If the job does not exist, the error of
// the command suggests a similar job.
func (c *Session) Ref(arg string) (ref *nusav1.JobRef, err error) {
	defer func() { c.WantedJob = ref }()
	name, region, own := strings.Cut(arg, "@")
	if ns, rest, ok := strings.Cut(name, "/"); ok {
		if c.Namespace != "" && c.Namespace != ns {
			return nil, fmt.Errorf("%q: another namespace than --namespace %s", arg, c.Namespace)
		}
		return refOf(ns, rest, region, arg, own)
	}
	ns := c.Namespace
	if ns == "" {
		ns = job.DefaultNamespace
	}
	return refOf(ns, name, region, arg, own)
}

func refOf(namespace, name, region, arg string, own bool) (*nusav1.JobRef, error) {
	if !job.ValidReference(name) || !job.ValidName(namespace) || own && !job.ValidName(region) {
		return nil, fmt.Errorf("%q is not a job: write NAME, NAMESPACE/NAME or NAME@REGION", arg)
	}
	return &nusav1.JobRef{Namespace: namespace, Name: name, Region: region}, nil
}

// RefName returns the full name of a job, for messages.
func RefName(r *nusav1.JobRef) string { return JobName(r.GetNamespace(), r.GetName(), r.GetRegion()) }

// RefArg returns the arguments that name a job in a suggested command.
func RefArg(ref *nusav1.JobRef) string {
	name := ref.GetName()
	if ref.GetRegion() != "" {
		name += "@" + ref.GetRegion()
	}
	if ref.GetNamespace() != job.DefaultNamespace {
		name += " -n " + ref.GetNamespace()
	}
	return name
}

// FileArg returns the name of a file in a suggested command. For standard input, which
// cannot be read again, it returns "FILE".
func FileArg(name string) string {
	if name == "-" {
		return "FILE"
	}
	return name
}

// NamespaceOf returns the namespace of a spec. A spec without one is in the default
// namespace.
func NamespaceOf(spec *nusav1.JobSpec) string {
	if ns := spec.GetNamespace(); ns != "" {
		return ns
	}
	return job.DefaultNamespace
}

// JobName returns the full name of a job.
func JobName(namespace, name, region string) string {
	full := namespace + "/" + name
	if region != "" {
		full += "@" + region
	}
	return full
}
