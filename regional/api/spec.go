package api

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// checkJob is like checkSpec. It also refuses a spec that asks for accelerators if no
// node of the region has such accelerators, and a config of a plugin if each node with the plugin refuses
// it.
func checkJob(s *Server, spec *nusav1.JobSpec) error {
	if err := checkSpec(spec, s.region()); err != nil {
		return err
	}
	wrong := job.ConfigProblems(spec, func(driver string) iter.Seq[job.ConfigForm] { return wire.ConfigForms(s.State.View(), driver) })
	if len(wrong) > 0 {
		return rpcerr.Invalid(wrong.Proto()...)
	}
	if !job.AsksGPUs(spec) {
		return nil
	}
	missing := job.MissingGPUs(spec, wire.Accelerators(s.State.View()), "no node of region "+s.region())
	if len(missing) > 0 {
		return rpcerr.Invalid(missing.Proto()...)
	}
	return nil
}

// checkSpec sets the defaults of a spec and validates the spec. Its error names each wrong
// field. It changes the spec, so the caller must own the spec.
func checkSpec(spec *nusav1.JobSpec, region string) error {
	if spec == nil {
		return rpcerr.Invalid(&nusav1.Problem{Field: "spec", Message: "must be set"})
	}
	if name, at, found := strings.Cut(spec.GetName(), "@"); found && at == region {
		spec.Name = name // the region stores the name without the suffix
	}
	job.Default(spec)
	var wrong job.Errors
	if err := job.Validate(spec); err != nil && !errors.As(err, &wrong) {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if len(wrong) == 0 {
		wrong = job.Unsupported(spec)
	}
	if len(wrong) == 0 {
		wrong = checkRegionFields(spec, region)
	}
	if len(wrong) > 0 {
		return rpcerr.Invalid(wrong.Proto()...)
	}
	return nil
}

// checkRegionFields refuses the fields that choose regions. A region's own job runs only in
// that region, and a field of a spec must not be ignored silently. The values that
// job.Default sets are allowed.
func checkRegionFields(spec *nusav1.JobSpec, region string) job.Errors {
	out := checkRegionsSpec("regions", spec.GetRegions(), region)
	if job.IsTemplate(spec) {
		field := "schedule"
		if spec.GetSchedule() == nil {
			field = "parameterized"
		}
		if spec.GetWorkflow() != nil {
			field = "workflow"
		}
		out = append(out, job.Problem{
			Field: field, Reason: nusav1.Reason_REASON_UNSUPPORTED, Message: "only for jobs of the federation: submit the job to a global server",
		})
	}
	for _, name := range slices.Sorted(maps.Keys(spec.GetGroups())) {
		g := spec.GetGroups()[name]
		out = append(out, checkRegionsSpec("groups."+name+".regions", g.GetRegions(), region)...)
		u := g.GetUpdate()
		for _, f := range []struct {
			name string
			set  bool
		}{{"auto_revert", u.GetAutoRevert()}, {"canary", u.GetCanary() > 0}, {"auto_promote", u.GetAutoPromote()}, {"healthy_deadline", u.GetHealthyDeadline() != nil}, {"progress_deadline", u.GetProgressDeadline() != nil}, {"regions", u.GetRegions() != nil}} {
			if f.set {
				out = append(out, job.Problem{
					Field: "groups." + name + ".update." + f.name, Reason: nusav1.Reason_REASON_UNSUPPORTED,
					Message: "not supported yet for a region's own jobs",
				})
			}
		}
	}
	return out
}

func checkRegionsSpec(field string, r *nusav1.RegionsSpec, region string) job.Errors {
	var out job.Errors
	for _, part := range []struct {
		name string
		set  bool
	}{
		{"allow", len(r.GetAllow()) > 0},
		{"prefer", len(r.GetPrefer()) > 0},
		{"near", len(r.GetNear()) > 0},
		{"spread", r.GetSpread().GetMin() != 0 || r.GetSpread().GetMax() != 0},
		{"divide", r.GetDivide() != nusav1.Divide_DIVIDE_UNSPECIFIED && r.GetDivide() != nusav1.Divide_DIVIDE_CAPACITY},
	} {
		if part.set {
			out = append(out, job.Problem{
				Field: field + "." + part.name, Reason: nusav1.Reason_REASON_UNSUPPORTED,
				Message: fmt.Sprintf("a job of region %s runs only in that region: remove this field, or submit the job to a global server, which makes it a job of the federation", region),
			})
		}
	}
	return out
}
