package rest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"sync"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// maxPending bounds the submits of a stream that wait for their responses.
	maxPending = 256
	// linePause is how long a stream of requests may be quiet.
	linePause = 10 * time.Minute
	// maxLine bounds a line: a job and the fields around it.
	maxLine = maxJob + 4096
)

// duplexes returns a handler for the operations that take a stream of requests. grpc-gateway would not
// tell the client about a malformed line.
func duplexes(a *api, mux *runtime.ServeMux) http.Handler {
	handlers := map[string]func(*call, context.Context) error{"Jobs.SubmitMany": submitMany, "Allocations.Exec": execLines}
	byPath := map[string]*operation{}
	for _, op := range a.all {
		if op.duplex() && handlers[op.name] != nil {
			byPath[op.path] = op
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op := byPath[r.URL.Path]
		switch {
		case op != nil && op.name == "Allocations.Exec" && isWebSocket(r):
			serveTerminal(a, op, w, r)
		case op != nil && r.Method == op.verb:
			serveLines(a, op, w, r, handlers[op.name])
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// serveLines handles an operation whose request and response are streams of lines.
func serveLines(a *api, op *operation, plain http.ResponseWriter, r *http.Request, handle func(*call, context.Context) error) {
	w := newWriter(plain, r)
	defer func() { a.counted(op, w) }()
	defer w.end()
	auth, p := credential(r)
	if p != nil {
		w.fail(p, r)
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != linesType && kind != jsonType {
		w.fail(op.wrongType(w, r), r)
		return
	}
	if faults := op.checkQuery(r.URL.Query()); len(faults) > 0 {
		w.fail(invalid(faults...), r)
		return
	}
	_ = w.control.EnableFullDuplex() // fails for HTTP/2, which has it
	// Otherwise net/http reads what is left of the body while it waits for the next request.
	w.Header().Set("Connection", "close")
	_ = w.control.SetWriteDeadline(time.Time{})
	ctx, end := context.WithCancel(r.Context())
	defer end()
	if !a.enter() {
		w.fail(tooMany(), r)
		return
	}
	defer a.leave()
	w.left, w.begun = end, func() { serve.Keep(r) }
	c := &call{op: op, r: r, w: w}
	ctx = context.WithValue(ctx, callKey{}, c)
	if auth != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", auth)
	}
	w.streams, w.ping = true, "\n"
	w.Header().Set("Content-Type", linesType)
	stop := w.keep()
	err := handle(c, ctx)
	end()
	c.reader.stop(w.control)
	stop()
	if p := problemOf(err); err != nil && !w.fail(p, r) {
		_, _ = w.Write(append(p.frame(r), '\n'))
	}
}

// send writes a message as a line.
func (c *call) send(m proto.Message) error {
	data, err := marshal(m)
	if err != nil {
		return err
	}
	return c.line(data)
}

func (c *call) line(data []byte) error {
	if _, err := c.w.Write(append(data, '\n')); err != nil {
		return err
	}
	return c.w.FlushError()
}

// errLongLine is the error of a line that exceeds its bound.
var errLongLine = errors.New("a line has more than 1 MiB")

// reader is the goroutine that reads a request which is a stream.
type reader struct {
	mu      sync.Mutex
	stopped bool
	wg      sync.WaitGroup
}

// errStopped is the error of reading after stop.
var errStopped = errors.New("the response is complete")

// extend gives the client time for the next line.
func (r *reader) extend(control *http.ResponseController) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return errStopped
	}
	_ = control.SetReadDeadline(time.Now().Add(linePause))
	return nil
}

// stop ends the reading, and waits for that: a body must not be read after its handler has returned.
func (r *reader) stop(control *http.ResponseController) {
	r.mu.Lock()
	r.stopped = true
	_ = control.SetReadDeadline(time.Unix(1, 0))
	r.mu.Unlock()
	r.wg.Wait()
}

// lines returns a function that returns the next line that is not empty, without its end.
func (c *call) lines() func() ([]byte, error) {
	in := bufio.NewReaderSize(c.r.Body, 64<<10)
	return func() ([]byte, error) {
		var line []byte
		for {
			if err := c.reader.extend(c.w.control); err != nil {
				return nil, err
			}
			part, err := in.ReadSlice('\n')
			line = append(line, part...)
			switch {
			case len(line) > maxLine:
				return nil, errLongLine
			case errors.Is(err, bufio.ErrBufferFull):
				continue
			case err != nil && len(bytes.TrimSpace(line)) == 0:
				return nil, err
			}
			line = bytes.TrimSpace(line)
			if len(line) > 0 {
				return line, nil
			}
		}
	}
}

// submitMany submits the job of each line. Each line gets a response in the same order. A line that is
// wrong fails alone. The server may end the stream before the client has sent a line, for example because
// it does not know the caller.
func submitMany(c *call, ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	stream, err := nusav1.NewJobsClient(caller{}).SubmitMany(ctx)
	if err != nil {
		return err
	}
	pending := make(chan *nusav1.SubmitManyResponse, maxPending) // nil: the server answers
	var failed error                                             // set before pending is closed
	c.reader.wg.Go(func() {
		defer close(pending)
		failed = sendSubmits(ctx, c, stream, pending)
		_ = stream.CloseSend()
	})
	answers, ended := make(chan *nusav1.SubmitManyResponse), make(chan struct{})
	c.reader.wg.Go(func() { err = receiveAnswers(ctx, stream, answers); close(ended) })
	for over := (<-chan struct{})(ended); ; {
		select {
		case answer, more := <-pending:
			if !more {
				return failed
			}
			if answer == nil {
				select {
				case answer = <-answers:
				case <-ended:
					return err
				}
			}
			if err := c.send(answer); err != nil {
				return err
			}
		case <-over:
			if !errors.Is(err, io.EOF) {
				return err
			}
			over = nil // the client has sent all lines, and each has its response
		}
	}
}

// receiveAnswers passes the answers of the server on, until there are no more.
func receiveAnswers(ctx context.Context, stream nusav1.Jobs_SubmitManyClient, to chan<- *nusav1.SubmitManyResponse) error {
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case to <- answer:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sendSubmits reads lines until the client has no more.
func sendSubmits(ctx context.Context, c *call, stream nusav1.Jobs_SubmitManyClient, pending chan<- *nusav1.SubmitManyResponse) error {
	next := c.lines()
	for number := int32(1); ; number++ {
		line, err := next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errLongLine):
			return rpcerr.Invalid(&nusav1.Problem{Line: number, Message: err.Error()})
		case err != nil:
			return status.Error(codes.InvalidArgument, "the body cannot be read: "+err.Error())
		}
		var answer *nusav1.SubmitManyResponse
		req, faults := readSubmit(line)
		if len(faults) > 0 {
			text := status.Convert(rpcerr.Invalid(faults...)).Message()
			answer = &nusav1.SubmitManyResponse{Code: int32(codes.InvalidArgument), Error: text, Problems: faults}
		}
		select {
		case pending <- answer:
		case <-ctx.Done():
			return ctx.Err()
		}
		if answer == nil && stream.Send(req) != nil {
			return nil // Recv returns why
		}
	}
}

// readSubmit reads one line: the JSON of a SubmitRequest, whose spec may be written as in a job file.
func readSubmit(line []byte) (*nusav1.SubmitRequest, []*nusav1.Problem) {
	trees, err := doc.Read(line, true)
	if err != nil {
		return nil, []*nusav1.Problem{syntax(err)}
	}
	var spec *nusav1.JobSpec
	if len(trees) == 1 && trees[0].Kind == doc.Map {
		rest := &doc.Node{Kind: doc.Map}
		for _, e := range trees[0].Entries {
			if e.Key != "spec" {
				rest.Add(e.Key, e.Value)
				continue
			}
			given, faults := readJob(e.Value.Compact(), false)
			if len(faults) > 0 {
				return nil, faults
			}
			spec = given
		}
		line = rest.Compact()
	}
	req := &nusav1.SubmitRequest{}
	if faults := decode(line, req); len(faults) > 0 {
		return nil, faults
	}
	if spec == nil {
		return nil, []*nusav1.Problem{{Field: "spec", Message: "is missing: each line is an object with the job as its spec"}}
	}
	req.Spec = spec
	return req, nil
}

// inputError is the error of a call whose stream of requests cannot be read.
func inputError(err error) error {
	if rpcerr.From(err).Code == codes.InvalidArgument {
		return err
	}
	return status.Error(codes.InvalidArgument, "the request cannot be read: "+err.Error())
}

// readExec reads the line with a number.
func readExec(line []byte, number int32, into *nusav1.ExecRequest) error {
	faults := decode(line, into)
	if len(faults) == 0 {
		return nil
	}
	for _, f := range faults {
		f.Line = number
	}
	return rpcerr.Invalid(faults...)
}

// execLines runs a command. The lines are ExecRequests, the first one with start.
func execLines(c *call, ctx context.Context) error {
	return execute(ctx, &c.reader.wg, c.lines(), c.send)
}

// execute passes requests to an exec, and its responses to the client, until the command ends.
func execute(ctx context.Context, wg *sync.WaitGroup, next func() ([]byte, error), send func(proto.Message) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	stream, err := nusav1.NewAllocationsClient(caller{}).Exec(ctx)
	if err != nil {
		return err
	}
	wg.Add(1)
	go func() {
		defer wg.Done()
		for number := int32(1); ; number++ {
			line, err := next()
			if errors.Is(err, io.EOF) {
				_ = stream.CloseSend()
				return
			}
			req := &nusav1.ExecRequest{}
			if err == nil {
				err = readExec(line, number, req)
			}
			if err != nil {
				end(inputError(err))
				return
			}
			if stream.Send(req) != nil {
				return // Recv returns why
			}
		}
	}()
	for {
		resp, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && rpcerr.From(context.Cause(ctx)).Code == codes.InvalidArgument:
			return context.Cause(ctx)
		case err != nil:
			return err
		}
		if err := send(resp); err != nil {
			return err
		}
	}
}
