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
	// maxBodies bounds the large bodies, and the job files in YAML, that are read at a time: a file of 1 MiB
	// can take almost 300 MiB of memory until its bounds are checked.
	maxBodies = 4
	// largeBody is the size from which on a body is large, in bytes.
	largeBody = 256 << 10
	// bodyWait is how long a request waits for its turn.
	bodyWait = 10 * time.Second
)

// unknownCaller returns the error for a caller whom the server does not know, or nil. ctx has the
// credential.
func unknownCaller(ctx context.Context, conn grpc.ClientConnInterface) *problem {
	if _, err := nusav1.NewAuthClient(conn).WhoAmI(ctx, &nusav1.WhoAmIRequest{}); status.Code(err) == codes.Unauthenticated {
		return problemOf(err)
	}
	return nil
}

// admit lets the server read the body of a request, until the returned function is called. The call would
// refuse a caller whom the server does not know, but only after the body was read.
func (a *api) admit(ctx context.Context, r *http.Request, auth string) (done func(), p *problem) {
	conn, err := serve.Conn(r)
	if err != nil {
		return nil, problemOf(err)
	}
	ctx, cancel := context.WithTimeout(ctx, bodyWait)
	defer cancel()
	asking := ctx
	if auth != "" {
		asking = metadata.AppendToOutgoingContext(ctx, "authorization", auth)
	}
	if p := unknownCaller(asking, conn); p != nil {
		return nil, p
	}
	return a.enterBody(ctx)
}

// enterBody waits for the turn of a body.
func (a *api) enterBody(ctx context.Context) (done func(), p *problem) {
	select {
	case a.bodies <- struct{}{}:
		return func() { <-a.bodies }, nil
	case <-ctx.Done():
		return nil, problemOf(rpcerr.Error{Code: codes.ResourceExhausted, RetryAfter: bodyWait,
			Message: fmt.Sprintf("the server reads %d other large bodies or jobs in YAML: send yours later", maxBodies)}.Err())
	}
}
