package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// Bounds of the pause between two attempts of a call.
const (
	leastPause = 100 * time.Millisecond
	mostPause  = 2 * time.Second
)

// readers begin the names of methods that change nothing.
var readers = []string{"Get", "List", "Plan", "Explain", "Stats", "Verify", "Matrix", "Path", "Nearest", "Check", "History", "Resolve", "Info", "WhoAmI", "CanI"}

// unary makes a call, and repeats it as Client says.
func (c *Client) unary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	for attempt := 0; ; attempt++ {
		err := typed(call(ctx, method, req, reply, conn, opts...))
		if err == nil || attempt >= c.retries || !repeatable(method, req, err) {
			return err
		}
		if errors.Is(err, ErrNotLeader) || errors.Is(err, ErrUnavailable) {
			c.servers.next()
		}
		if !pause(ctx, attempt, err) {
			return err
		}
	}
}

// repeatable reports whether a call may be repeated after an error.
func repeatable(method string, req any, err error) bool {
	if errors.Is(err, ErrUnreachable) || errors.Is(err, ErrNotLeader) {
		return true // the call has not taken effect
	}
	if !passes(err) {
		return false
	}
	if keyed, ok := req.(interface{ GetIdempotencyKey() string }); ok && keyed.GetIdempotencyKey() != "" {
		return true
	}
	name := method[strings.LastIndexByte(method, '/')+1:]
	for _, reader := range readers {
		if strings.HasPrefix(name, reader) {
			return true
		}
	}
	return false
}

// pause waits before the next attempt. It returns false if ctx ends first.
func pause(ctx context.Context, attempt int, err error) bool {
	wait := min(leastPause<<min(attempt, 10), mostPause)
	wait = wait/2 + rand.N(wait/2+1)
	var e *Error
	if errors.As(err, &e) && e.RetryAfter > wait {
		wait = min(e.RetryAfter, mostPause)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stream opens a stream whose errors are *Error.
func (c *Client) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, conn, method, opts...)
	if err != nil {
		return nil, typed(err)
	}
	return typedStream{s}, nil
}

type typedStream struct{ grpc.ClientStream }

// SendMsg implements grpc.ClientStream.
func (s typedStream) SendMsg(m any) error { return typed(s.ClientStream.SendMsg(m)) }

// RecvMsg implements grpc.ClientStream.
func (s typedStream) RecvMsg(m any) error { return typed(s.ClientStream.RecvMsg(m)) }
