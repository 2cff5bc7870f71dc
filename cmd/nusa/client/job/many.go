package job

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// manyWaiting bounds the submits without a response. The server has the same bound for a stream.
	manyWaiting = 256
	// endWait bounds the wait for the end of a stream after its last response.
	endWait = 5 * time.Second
	// progressAfter is how long a command lasts before it shows its progress.
	progressAfter = time.Second
)

// many submits several jobs without waiting until they run.
//
// The first job is a call of its own: if the server or the credentials are wrong, it fails like the submit of
// one job. The others go through streams. Each job keeps its idempotency key, so a job that was sent through a
// stream that broke is sent again.
type many struct {
	*cli.Session
	*submission
	jobs []*jobSource
	keys []string
	// own is the region whose server is called, "" for a global server. asked: the server was asked for it.
	own   string
	asked bool
	// done is how many jobs have a result, in order, and refused how many of them were refused. latest is when the
	// latest result came.
	done, refused int
	latest        time.Time
	// sent is how many jobs were sent, in order.
	sent atomic.Int64

	progress submitProgress
}

// sendMany submits the jobs. A refused job is reported, and the others are submitted.
func (r *submission) sendMany(c *cli.Session, jobs []*jobSource) error {
	c.Timeout = min(r.timeout, cli.DefaultTimeout)
	m := &many{Session: c, submission: r, jobs: jobs, keys: make([]string, len(jobs)), own: r.region, asked: r.region != "", latest: time.Now()}
	m.progress = submitProgress{w: c.Cmd.ErrOrStderr(), on: term.IsTerminal(c.Cmd.ErrOrStderr()), began: time.Now()}
	for i := range m.keys {
		m.keys[i] = rand.Text()
	}
	err := m.single()
	if err == nil {
		err = m.streams()
	}
	m.progress.clear()
	return m.ended(err)
}

// single submits the next job by a call.
func (m *many) single() error {
	if m.sent.Load() <= int64(m.done) { // no stream is open
		m.sent.Store(int64(m.done + 1))
	}
	resp, err := m.patient(m.done)
	return m.result(resp, err)
}

// patient submits a job by a call. While the servers say that the error will pass, it tries again, until no result
// has come for the time-out.
func (m *many) patient(i int) (*nusav1.SubmitResponse, error) {
	until := m.latest.Add(m.Timeout)
	for {
		resp, err := m.submit(m.Session, m.ref(i), m.jobs[i].JobSpec, m.keys[i])
		after := passesAfter(err, i == 0)
		if after == 0 || time.Until(until) < after {
			return resp, err
		}
		select {
		case <-m.Ctx.Done():
			return nil, status.FromContextError(m.Ctx.Err()).Err()
		case <-time.After(after):
		}
	}
}

// passesAfter returns when a submit that failed makes sense again, or 0: the queue of the servers is full, or another
// server becomes the active one. The first job does not wait for servers that cannot serve.
func passesAfter(err error, first bool) time.Duration {
	e := rpcerr.From(err)
	if e.Code == codes.ResourceExhausted && e.Reason != rpcerr.ReasonStoreFull || e.Code == codes.Unavailable && !first {
		return e.RetryAfter
	}
	return 0
}

// streams sends the jobs without a result through streams. A stream that breaks is followed by another one,
// unless no result has come for the time-out.
func (m *many) streams() error {
	for m.done < len(m.jobs) {
		broke, err := m.stream()
		switch {
		case err != nil:
			return err
		case broke == nil:
			return nil
		case status.Code(broke) == codes.Unimplemented: // an earlier version, or what is before the server, has no streams
			m.sent.Store(int64(m.done))
			for m.done < len(m.jobs) {
				if err := m.single(); err != nil {
					return err
				}
			}
			return nil
		case !cli.MayPass(broke) || time.Since(m.latest) > m.Timeout:
			return m.unsure(broke)
		}
		select {
		case <-m.Ctx.Done():
			return m.unsure(status.FromContextError(m.Ctx.Err()).Err())
		case <-time.After(cli.RetryPause):
		}
	}
	return nil
}

// submitAnswer is a message of a stream, or the error that ended it.
type submitAnswer struct {
	resp *nusav1.SubmitManyResponse
	err  error
}

// stream sends the jobs without a result through one stream. It returns why the stream broke, or the error
// that ends the command.
func (m *many) stream() (broke, err error) {
	ctx, cancel := context.WithCancel(m.Ctx)
	var g errgroup.Group
	defer func() { cancel(); _ = g.Wait() }()
	stream, broke := m.Jobs().SubmitMany(ctx)
	if broke != nil {
		return broke, nil
	}
	room := make(chan struct{}, manyWaiting)
	first := m.done
	g.Go(func() error {
		for i := first; i < len(m.jobs); i++ {
			select {
			case room <- struct{}{}:
			case <-ctx.Done():
				return nil
			}
			m.sent.Store(max(m.sent.Load(), int64(i+1)))
			if err := stream.Send(m.request(m.jobs[i].JobSpec, m.keys[i])); err != nil {
				return nil // Recv returns the reason
			}
		}
		return stream.CloseSend()
	})
	answers := make(chan submitAnswer)
	g.Go(func() error {
		for {
			resp, err := stream.Recv()
			select {
			case answers <- submitAnswer{resp, err}:
			case <-ctx.Done():
				return nil
			}
			if err != nil {
				return nil
			}
		}
	})
	tick := time.NewTicker(redrawEvery)
	defer tick.Stop()
	for m.done < len(m.jobs) {
		select {
		case a := <-answers:
			switch {
			case errors.Is(a.err, io.EOF):
				return status.Error(codes.Unavailable, "the server ended the stream"), nil
			case a.err != nil:
				return a.err, nil
			}
			select {
			case <-room:
			default: // waiting for room that no job takes would never end
				return status.Errorf(codes.Internal, "%s sent more responses than jobs: see %s job list", m.Addr, m.Program), nil
			}
			if err := m.answered(a.resp); err != nil {
				return nil, err
			}
		case <-ctx.Done(): // the reader of the stream may end without an answer
			return status.FromContextError(ctx.Err()).Err(), nil
		case <-tick.C:
			m.progress.draw(m.done, m.refused, len(m.jobs))
		case <-time.After(time.Until(m.latest.Add(m.Timeout))):
			return status.Error(codes.DeadlineExceeded, "no response"), nil
		}
	}
	return nil, m.complete(answers)
}

// complete returns an error if a response follows after that of the last job. Responses have no names, so a surplus one shifts
// the results of the jobs after it.
func (m *many) complete(answers <-chan submitAnswer) error {
	select {
	case a := <-answers:
		if a.err == nil {
			m.progress.clear()
			return &cli.ExitError{Code: cli.ExitUnknown, Err: fmt.Errorf("%s sent more responses than jobs, so a result may be that of another job: see %s job list; a retry is safe", m.Addr, m.Program)}
		}
	case <-time.After(endWait):
	case <-m.Ctx.Done():
	}
	return nil
}

// answered takes the response to the next job. If the servers could not take the job at the moment, it is
// submitted again by a call, which says whether and when a retry makes sense.
func (m *many) answered(a *nusav1.SubmitManyResponse) error {
	switch code := codes.Code(a.GetCode()); code {
	case codes.OK:
		return m.result(a.GetResponse(), nil)
	case codes.ResourceExhausted, codes.Unavailable:
		err := m.single()
		if err == nil || errors.As(err, new(*cli.ExitError)) && int(m.sent.Load())-m.done == 1 { // it names the only job
			return err
		}
		return m.unsure(err)
	default:
		if err := m.result(nil, rpcerr.Error{Code: code, Message: a.GetError(), Problems: a.GetProblems()}.Err()); err != nil {
			return m.unsure(err)
		}
		return nil
	}
}

// result shows the result of the next job. It returns an error that concerns the others, too.
func (m *many) result(resp *nusav1.SubmitResponse, err error) error {
	if err != nil && ofAll(err) {
		return err
	}
	if err == nil && !m.asked {
		ctx, cancel := m.WithTimeout()
		m.own, m.asked = m.RegionOf(ctx), true
		cancel()
	}
	file, ref := m.jobs[m.done], m.ref(m.done)
	m.done++
	m.latest = time.Now()
	m.progress.clear()
	defer func() { m.progress.draw(m.done, m.refused, len(m.jobs)) }()
	if err == nil {
		return m.accepted(m.Session, ref, file.JobSpec, resp)
	}
	m.refused++
	for _, line := range cli.ErrorLines(m.Explain(file.locate(err))) {
		if !strings.HasPrefix(line, file.name+":") {
			line = file.name + ": " + cli.RefName(ref) + ": " + line
		}
		m.Warn("%s", line)
	}
	return nil
}

// ofAll reports whether an error concerns more than the job that was sent.
func ofAll(err error) bool {
	if errors.As(err, new(*cli.ExitError)) {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unauthenticated, codes.Unimplemented:
		return true
	}
	return false
}

func (m *many) ref(i int) *nusav1.JobRef {
	spec := m.jobs[i].JobSpec
	return &nusav1.JobRef{Namespace: cli.NamespaceOf(spec), Name: spec.GetName(), Region: m.own}
}

// unsure returns the error of jobs that may have been accepted. It returns err if there are none.
func (m *many) unsure(err error) error {
	open := int(m.sent.Load()) - m.done
	if open <= 0 {
		return err
	}
	name, more := cli.RefName(m.ref(m.done)), ""
	if open > 1 {
		more = fmt.Sprintf(" and the %s after it", term.Plural(open-1, "job"))
	}
	advice := "a retry is safe"
	if m.again {
		m.progress.clear()
		for i := m.done; i < m.done+open; i++ { // at most manyWaiting
			m.Warn("%s", m.unknown(m.Session, m.ref(i), err, m.keys[i]))
		}
		advice = "retry each with its key"
	}
	what := m.broken(m.Session, err)
	if st, ok := status.FromError(err); ok && rpcerr.TransportFailure(err) == rpcerr.NoFailure && st.Code() != codes.DeadlineExceeded && !m.Interrupted() {
		what = term.OneLine(st.Message())
	}
	return &cli.ExitError{Code: cli.ExitUnknown, Err: fmt.Errorf("%s: %s%s may have been accepted; %s", what, name, more, advice)}
}

// ended returns the error of the command. err is what ended it before the last job.
func (m *many) ended(err error) error {
	stored := m.done - m.refused
	switch {
	case err != nil && stored > 0:
		m.Warn("%d of %d jobs %s submitted, and continue", stored, len(m.jobs), were(stored))
		return err
	case err != nil || m.refused == 0:
		return err
	case stored == 0:
		return &cli.ExitError{Code: cli.ExitFail, Err: fmt.Errorf("all %d jobs were refused: see above", m.refused)}
	}
	return &cli.ExitError{Code: cli.ExitFail, Err: fmt.Errorf("%d of %d jobs %s refused: see above; the rest was submitted, and continues", m.refused, len(m.jobs), were(m.refused))}
}

func were(n int) string {
	if n == 1 {
		return "was"
	}
	return "were"
}

// submitProgress is the line on a terminal that says how many jobs were submitted.
type submitProgress struct {
	w     io.Writer
	on    bool // w is a terminal
	began time.Time
	drawn bool
	at    time.Time // when the line was last drawn
}

func (p *submitProgress) draw(done, refused, all int) {
	now := time.Now()
	if !p.on || now.Sub(p.began) < progressAfter || now.Sub(p.at) < redrawEvery && p.drawn {
		return
	}
	text := fmt.Sprintf("%6s %d of %s submitted", term.Duration(now.Sub(p.began)), done-refused, term.Plural(all, "job"))
	if refused > 0 {
		text += fmt.Sprintf(", %d refused", refused)
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", text)
	p.drawn, p.at = true, now
}

// clear removes the line, so that another one can be printed.
func (p *submitProgress) clear() {
	if p.drawn {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.drawn = false
	}
}
