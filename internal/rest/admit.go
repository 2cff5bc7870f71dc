package rest

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/serve"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxFiles bounds the job files in YAML that are read at a time: a file of 1 MiB can take almost
	// 300 MiB of memory until its bounds are checked.
	maxFiles = 4
	// fileWait is how long a request waits for its turn.
	fileWait = 10 * time.Second
)

// unknownCaller returns the error for a caller whom the server does not know, or nil. ctx has the
// credential.
func unknownCaller(ctx context.Context, conn grpc.ClientConnInterface) *problem {
	if _, err := nusav1.NewAuthClient(conn).WhoAmI(ctx, &nusav1.WhoAmIRequest{}); status.Code(err) == codes.Unauthenticated {
		return problemOf(err)
	}
	return nil
}

// admit lets a request read its job file, until the returned function is called. The call would refuse a
// caller whom the server does not know, but only after the file was read.
func (a *api) admit(ctx context.Context, r *http.Request, auth string) (done func(), p *problem) {
	conn, err := serve.Conn(r)
	if err != nil {
		return nil, problemOf(err)
	}
	ctx, cancel := context.WithTimeout(ctx, fileWait)
	defer cancel()
	asking := ctx
	if auth != "" {
		asking = metadata.AppendToOutgoingContext(ctx, "authorization", auth)
	}
	if p := unknownCaller(asking, conn); p != nil {
		return nil, p
	}
	return a.enterFile(ctx)
}

// enterFile waits for the turn of a job file.
func (a *api) enterFile(ctx context.Context) (done func(), p *problem) {
	select {
	case a.files <- struct{}{}:
		return func() { <-a.files }, nil
	case <-ctx.Done():
		return nil, problemOf(rpcerr.Error{Code: codes.ResourceExhausted, RetryAfter: fileWait,
			Message: fmt.Sprintf("the server reads %d other job files in YAML: send the job later, or as JSON", maxFiles)}.Err())
	}
}
