package api

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/topo"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// rpcError maps an error to the status that api.proto documents.
func rpcError(err error) error {
	var problems job.Errors
	if errors.As(err, &problems) {
		return rpcerr.Invalid(problems.Proto()...)
	}
	return state.RPCErrors.Err(err)
}

// invalid returns INVALID_ARGUMENT for one field of the request.
func invalid(field, message string) error {
	return rpcerr.Invalid(&nusav1.Problem{Field: field, Message: message})
}

// unknownRegion returns INVALID_ARGUMENT for a field that names an unknown region. The text lists
// the existing regions. The lock is held.
func unknownRegion(st *state.State, field, name string) error {
	what := "region "
	if field == "region" {
		what = "" // the field's name already says "region"
	}
	return invalid(field, fmt.Sprintf("%s%q does not exist; there are %s", what, name, topo.ListNames(st.RegionNames())))
}

// regionNotFound returns NOT_FOUND for a region. The text lists the existing regions. The lock is
// held.
func regionNotFound(st *state.State, name string) error {
	return status.Errorf(codes.NotFound, "region %q does not exist; there are %s", name, topo.ListNames(st.RegionNames()))
}

func jobNotFound(k state.JobKey) error {
	return rpcerr.NotFound(rpcerr.KindJob, k.String(), fmt.Sprintf("job %s does not exist", k))
}
