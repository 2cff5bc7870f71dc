package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// runTimeout is how long job run waits by default.
	runTimeout = 5 * time.Minute
	// submitAttempts is how often a submit is sent when its connection is lost.
	submitAttempts = 3
)

func jobRun(s *settings) *cobra.Command {
	var r submission
	c := &cobra.Command{
		Use: "run FILE", Aliases: []string{"submit"}, Short: "Submit a job and wait until it runs", Args: takes("FILE"),
		Long: `Submits a job file (- is standard input) and waits, with a live view, until
every instance runs in the submitted version (service, system) or has completed
(batch). A batch job that has ended is left alone unless it has changed, or
with --again.

Exit codes: 0 done; 1 error; 2 accepted, but not placed or not healthy within
--timeout, or no answer came, so that it may have been accepted: the message
says so, and a retry is safe; 3 accepted, and it is over: a batch job has failed,
or the new version was taken back because it did not become healthy. After 1 and
2 what was accepted goes on.`,
		Example: "  nusa job run hello.yaml\n  nusa job run --detach - < hello.yaml\n  nusa job run --again batch.yaml",
		RunE:    s.run(r.run),
	}
	f := c.Flags()
	f.BoolVarP(&r.detach, "detach", "d", false, "do not wait")
	f.BoolVar(&r.again, "again", false, "run a batch job that has ended again, though nothing has changed")
	f.Int64Var(&r.check, "check-revision", 0, "refuse unless the stored job's revision is this (from job plan); -1: unless there is none")
	f.StringVar(&r.region, "region", "", "submit to this region's own servers: the job is NAME@REGION there")
	f.StringVar(&r.key, "idempotency-key", "", "a retry with the same key has the same answer (default: a key of its own for every call)")
	f.DurationVar(&r.timeout, "timeout", runTimeout, "how long to wait until the job runs")
	return c
}

// submission is job run's flags.
type submission struct {
	detach, again bool
	check         int64
	region, key   string
	timeout       time.Duration
}

func (r *submission) run(c *caller, args []string) error {
	if r.timeout <= 0 {
		return fmt.Errorf("--timeout: %s is not more than 0; --detach does not wait", r.timeout)
	}
	file, err := readJob(c.cmd, args[0], c.namespace)
	if err != nil {
		return err
	}
	spec := file.JobSpec
	batch := spec.GetType() == nusav1.JobType_JOB_TYPE_BATCH
	if r.again && !batch {
		return fmt.Errorf("--again: %s is no batch job; only those end by themselves", spec.GetName())
	}
	if r.region != "" {
		done, err := c.redial(r.region)
		if err != nil {
			return err
		}
		defer done()
	}
	began := time.Now()
	ref := &nusav1.JobRef{Namespace: namespaceOf(spec), Name: spec.GetName(), Region: r.region}
	resp, err := r.submit(c, ref, spec)
	if err != nil {
		return file.locate(err)
	}
	if r.region == "" {
		ctx, cancel := c.call()
		ref.Region = c.regionOf(ctx)
		cancel()
	}
	warnings := news(resp.GetWarnings(), spec)
	if r.detach {
		c.warnings(warnings)
		return c.print(resp, func(w io.Writer) { submitted(w, ref, resp, r.again) })
	}
	f := follower{caller: c, ref: ref, version: resp.GetVersion(), batch: batch, began: began, timeout: r.timeout,
		unchanged: !resp.GetChanged() && !r.again, file: args[0], told: resp.GetWarnings()}
	if r.again {
		f.since = resp.GetRevision()
	}
	if f.unchanged && batch && c.output == "table" {
		f.held = warnings
	} else {
		c.warnings(warnings)
	}
	if c.output == "table" {
		submitted(c.out, ref, resp, r.again)
	}
	return f.wait()
}

// submit stores the job. When the connection is lost it tries again under the
// same idempotency key; when no answer comes at all it is not known whether
// the job was accepted, and the error says so.
func (r *submission) submit(c *caller, ref *nusav1.JobRef, spec *nusav1.JobSpec) (*nusav1.SubmitResponse, error) {
	c.timeout = min(r.timeout, defaultTimeout)
	ctx, cancel := c.call()
	defer cancel()
	if r.key == "" {
		r.key = rand.Text()
	}
	req := &nusav1.SubmitRequest{Spec: spec, CheckRevision: r.check, IdempotencyKey: r.key, Again: r.again}
	sent := false // an earlier attempt may have arrived
	for attempt := 1; ; attempt++ {
		resp, err := c.jobs().Submit(ctx, req)
		code := status.Code(err)
		switch {
		case err == nil:
			return resp, nil
		case !sent && c.conn.GetState() == connectivity.Connecting:
			return nil, err // it never left
		case code == codes.DeadlineExceeded, code == codes.Canceled:
			return nil, r.unknown(c, ref, err)
		case lost(err):
			sent = true
		case !sent || code != codes.Unavailable:
			return nil, err
		}
		if attempt == submitAttempts {
			return nil, r.unknown(c, ref, err)
		}
		select {
		case <-ctx.Done():
			return nil, r.unknown(c, ref, status.FromContextError(ctx.Err()).Err())
		case <-time.After(rewatch):
		}
	}
}

// unknown says that the job may have been accepted, and what is safe to do.
func (r *submission) unknown(c *caller, ref *nusav1.JobRef, err error) error {
	what := fmt.Sprintf("the connection to %s was lost", c.addr)
	switch {
	case c.interrupted():
		what = "interrupted"
	case status.Code(err) == codes.DeadlineExceeded:
		what = fmt.Sprintf("no answer from %s within %s", c.addr, job.FormatDuration(c.timeout))
	}
	retry := "a retry is safe"
	if r.again {
		// Without the key a retry would be another run.
		retry = "a retry is safe with --idempotency-key " + r.key
	}
	return &exitError{exitUnknown, fmt.Errorf("%s: %s may have been accepted: see %s job status %s; %s", what, refName(ref), c.nusa, refArg(ref), retry)}
}

// news returns the warnings of a response without the notes about the spec,
// which servers of earlier versions send among them.
func news(warnings []string, spec *nusav1.JobSpec) []string {
	full := proto.CloneOf(spec)
	job.Default(full)
	notes := job.Notes(full)
	return slices.DeleteFunc(slices.Clone(warnings), func(w string) bool { return slices.Contains(notes, w) })
}

func (c *caller) warnings(all []string) {
	for _, w := range all {
		fmt.Fprintln(c.cmd.ErrOrStderr(), c.style.wait("warning: ")+called(plain(w), c.nusa))
	}
}

// refArg is how a job is named in a further command.
func refArg(ref *nusav1.JobRef) string {
	name := ref.GetName()
	if ref.GetRegion() != "" {
		name += "@" + ref.GetRegion()
	}
	if ref.GetNamespace() != job.DefaultNamespace {
		name += " -n " + ref.GetNamespace()
	}
	return name
}

// fileArg is how a file is named in a further command; standard input has been
// read.
func fileArg(name string) string {
	if name == "-" {
		return "FILE"
	}
	return name
}

func submitted(w io.Writer, ref *nusav1.JobRef, resp *nusav1.SubmitResponse, again bool) {
	what := "submitted"
	switch {
	case again:
		what = "submitted to run again"
	case !resp.GetChanged():
		what = "unchanged"
	}
	fmt.Fprintf(w, "%s %s, version %d (revision %d)\n", refName(ref), what, resp.GetVersion(), resp.GetRevision())
}

func namespaceOf(spec *nusav1.JobSpec) string {
	if ns := spec.GetNamespace(); ns != "" {
		return ns
	}
	return job.DefaultNamespace
}

// regionOf is the region of the server that is talked to, whose own jobs are
// NAME@REGION; "" for one of the global tier, or one that does not say.
func (c *caller) regionOf(ctx context.Context) string {
	info, err := nusav1.NewSystemClient(c.conn).Info(ctx, &nusav1.InfoRequest{})
	if err != nil || info.GetRole() != "regional" {
		return ""
	}
	return info.GetRegion()
}

// redial asks where a region's master is and goes on with that one, whose API
// takes the region's own jobs.
func (c *caller) redial(region string) (func(), error) {
	ctx, cancel := c.call()
	defer cancel()
	r, err := c.regions().Get(ctx, &nusav1.GetRegionRequest{Name: region})
	if err != nil {
		return nil, err
	}
	if r.GetMasterAddress() == "" {
		return nil, fmt.Errorf("region %s has no master that is known here: give one of its servers with --addr", region)
	}
	conn, err := dial(r.GetMasterAddress())
	if err != nil {
		return nil, err
	}
	c.conn, c.addr, c.master = conn, r.GetMasterAddress(), region
	return func() { conn.Close() }, nil
}
