package job

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// runTimeout is the default of job run's --timeout.
	runTimeout = 5 * time.Minute
	// submitAttempts is how many times a submit is sent at most if the connection breaks.
	submitAttempts = 3
)

func runCommand(s *cli.Settings) *cobra.Command {
	var r submission
	c := &cobra.Command{
		Use: "run FILE...", Aliases: []string{"submit"}, Short: "Submit a job and wait until it runs", Args: cobra.ArbitraryArgs,
		Long: `Submits job files (- is standard input) and shows the progress until every instance
runs the submitted version (service, system) or has completed (batch). An instance
must have run for update.min_healthy, 2 s by default, and for 10 s if it replaced
another version or was restarted. A batch job that has ended runs again only when
the file has changed, or with --again. A file may have several jobs, separated by ---,
and a folder stands for its files .yaml, .yml and .json. All jobs are checked before the
first one is submitted, at most 10,000 and 16 MiB of files. Several jobs are submitted in
the order of the files, and then the command waits for each in this order. A job that is
refused ends that. With --detach it is reported with its file, and the others are submitted.

Exit codes: 0 done; 1 error; 2 accepted, but not running within --timeout, or perhaps
accepted, because no response came: the message says which, and a retry is safe;
3 accepted, but failed; 4 the new version failed, and the job was taken back to the
version before. A job that was accepted continues after exit codes 1 and 2. With several
jobs the exit code is the greatest.`,
		Example: "  nusa job run hello.yaml\n  nusa job run -f jobs/ --timeout 10m\n  nusa job run --detach - < hello.yaml\n  nusa job run --again batch.yaml",
		RunE:    s.Run(r.run),
	}
	f := c.Flags()
	addFileFlag(c, &r.files)
	f.BoolVarP(&r.detach, "detach", "d", false, "do not wait")
	f.BoolVar(&r.again, "again", false, "run an ended batch job again, even if the file has not changed")
	f.Int64Var(&r.check, "check-revision", 0, "fail unless the stored job has this revision (from job plan); -1: unless the job does not exist")
	f.StringVar(&r.tag, "tag", "", "give the version this tag, with which job diff and job revert find it")
	f.StringVar(&r.region, "region", "", "submit to this region's own servers, as the job NAME@REGION")
	f.StringVar(&r.key, "idempotency-key", "", "repeat a submit with the same key to get the first result again (default: a new key for every call)")
	f.DurationVar(&r.timeout, "timeout", runTimeout, "how long to wait until the job runs")
	r.given.Bind(c)
	return c
}

// submission holds the flags of `job run`.
type submission struct {
	files         []string
	detach, again bool
	check         int64
	region, key   string
	tag           string
	timeout       time.Duration
	given         cli.Variables
}

func (r *submission) run(c *cli.Session, args []string) error {
	if r.timeout <= 0 {
		return errNoTime(r.timeout)
	}
	args, err := filesOf(c.Cmd, args, r.files)
	if err != nil {
		return err
	}
	jobs, err := readJobs(c.Cmd, args, c.Namespace, r.given)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		if r.again && (j.GetType() != nusav1.JobType_JOB_TYPE_BATCH || job.IsTemplate(j.JobSpec)) {
			return fmt.Errorf("--again: %s is no batch job; only those end by themselves", j.GetName())
		}
	}
	if len(jobs) > 1 && (r.check != 0 || r.key != "") {
		return fmt.Errorf("--check-revision and --idempotency-key are for one job, and the files have %d", len(jobs))
	}
	if r.region != "" {
		done, err := redial(c, r.region)
		if err != nil {
			return err
		}
		defer done()
	}
	if r.detach && len(jobs) > 1 {
		return r.sendMany(c, jobs)
	}
	if len(jobs) > 1 && c.Output == "table" {
		c.Warn("%d jobs: all are submitted, and then each is awaited, one after the other; --detach does not wait", len(jobs))
	}
	var waiters []*waiter
	for i, j := range jobs {
		f, err := r.send(c, j)
		if err != nil {
			if i > 0 {
				c.Warn("%s and the jobs before it were submitted, and continue", jobs[i-1].GetName())
			}
			return err
		}
		if f != nil {
			f.several = len(jobs) > 1
			waiters = append(waiters, f)
		}
	}
	return waitAll(c, waiters)
}

// waitAll waits for jobs, one after the other. Its exit code is the greatest of theirs.
func waitAll(c *cli.Session, all []*waiter) error {
	if len(all) == 1 {
		return all[0].wait()
	}
	failed, code := 0, cli.ExitDone
	for _, f := range all {
		err := f.wait()
		if err == nil {
			continue
		}
		failed++
		var exit *cli.ExitError
		if errors.As(err, &exit) {
			code = max(code, exit.Code)
		}
		code = max(code, cli.ExitFail)
		c.Warn("%s", err)
	}
	if failed == 0 {
		return nil
	}
	return &cli.ExitError{Code: code, Err: fmt.Errorf("%d of %d jobs are not as they should be: see above", failed, len(all))}
}

// send submits a job, and returns what waits for it. It returns nil with --detach.
func (r *submission) send(c *cli.Session, file *jobSource) (*waiter, error) {
	began, spec := time.Now(), file.JobSpec
	template := job.IsTemplate(spec)
	batch := spec.GetType() == nusav1.JobType_JOB_TYPE_BATCH && !template
	ref := &nusav1.JobRef{Namespace: cli.NamespaceOf(spec), Name: spec.GetName(), Region: r.region}
	resp, err := r.submit(c, ref, spec, cmp.Or(r.key, rand.Text()))
	if err != nil {
		return nil, file.locate(err)
	}
	if r.region == "" {
		ctx, cancel := c.WithTimeout()
		ref.Region = c.RegionOf(ctx)
		cancel()
	}
	if r.detach {
		return nil, r.accepted(c, ref, spec, resp)
	}
	warnings := submitWarnings(resp.GetWarnings(), spec)
	f := &waiter{Session: c, ref: ref, version: resp.GetVersion(), batch: batch, template: template, began: began, timeout: r.timeout,
		unchanged: !resp.GetChanged() && !r.again, file: file.name, warnings: resp.GetWarnings()}
	if r.again {
		f.since = resp.GetRevision()
	}
	if f.unchanged && batch && c.Output == "table" {
		f.held = warnings
	} else {
		cli.PrintWarnings(c, warnings)
	}
	if c.Output == "table" {
		r.submitted(c.Out, ref, resp)
	}
	return f, nil
}

// accepted shows the response to a submit with --detach.
func (r *submission) accepted(c *cli.Session, ref *nusav1.JobRef, spec *nusav1.JobSpec, resp *nusav1.SubmitResponse) error {
	cli.PrintWarnings(c, submitWarnings(resp.GetWarnings(), spec))
	return c.PrintAs(cli.RefName(ref), resp, func(w *term.Screen) { r.submitted(w, ref, resp) })
}

func (r *submission) request(spec *nusav1.JobSpec, key string) *nusav1.SubmitRequest {
	return &nusav1.SubmitRequest{Spec: spec, CheckRevision: r.check, IdempotencyKey: key, Again: r.again, Tag: r.tag}
}

// submit stores the job. After a broken connection it sends the submit again, with the same
// idempotency key. If no response arrives, the job may or may not have been accepted, and
// the error says so.
func (r *submission) submit(c *cli.Session, ref *nusav1.JobRef, spec *nusav1.JobSpec, key string) (*nusav1.SubmitResponse, error) {
	c.Timeout = min(r.timeout, cli.DefaultTimeout)
	ctx, cancel := c.WithTimeout()
	defer cancel()
	req := r.request(spec, key)
	sent := false // an earlier attempt may have arrived
	for attempt := 1; ; attempt++ {
		resp, err := c.Jobs().Submit(ctx, req)
		code := status.Code(err)
		switch {
		case err == nil:
			return resp, nil
		case !sent && c.Conn.GetState() == connectivity.Connecting:
			return nil, err // the request was never sent
		case code == codes.DeadlineExceeded, code == codes.Canceled:
			return nil, r.unknown(c, ref, err, key)
		case cli.ConnectionLost(err):
			sent = true
		case !sent || code != codes.Unavailable:
			return nil, err
		}
		if attempt == submitAttempts {
			return nil, r.unknown(c, ref, err, key)
		}
		select {
		case <-ctx.Done():
			return nil, r.unknown(c, ref, status.FromContextError(ctx.Err()).Err(), key)
		case <-time.After(cli.RetryPause):
		}
	}
}

// unknown returns the error of a submit that may have been accepted. The error says how the
// user finds out, and whether a retry is safe.
func (r *submission) unknown(c *cli.Session, ref *nusav1.JobRef, err error, key string) error {
	retry := "a retry is safe"
	if r.again {
		// A retry with a new key would start another run.
		retry = "a retry is safe with --idempotency-key " + key
	}
	return &cli.ExitError{Code: cli.ExitUnknown, Err: fmt.Errorf("%s: %s may have been accepted: see %s job status %s; %s", r.broken(c, err), cli.RefName(ref), c.Program, cli.RefArg(ref), retry)}
}

// broken says why no response came.
func (r *submission) broken(c *cli.Session, err error) string {
	switch {
	case c.Interrupted():
		return "interrupted"
	case status.Code(err) == codes.DeadlineExceeded:
		return fmt.Sprintf("no response from %s within %s", c.Addr, job.FormatDuration(c.Timeout))
	}
	return fmt.Sprintf("the connection to %s was lost", c.Addr)
}

// submitWarnings returns the warnings of a response. It omits the notes about the spec,
// which servers of earlier versions send as warnings.
func submitWarnings(warnings []string, spec *nusav1.JobSpec) []string {
	full := proto.CloneOf(spec)
	job.Default(full)
	notes := job.Notes(full)
	return slices.DeleteFunc(slices.Clone(warnings), func(w string) bool { return slices.Contains(notes, w) })
}

// submitted says what a submit has changed.
func (r *submission) submitted(w io.Writer, ref *nusav1.JobRef, resp *nusav1.SubmitResponse) {
	what, tag := "submitted", ""
	if r.tag != "" {
		tag = ", with the tag " + r.tag
	}
	switch {
	case r.again:
		what = "submitted to run again"
	case !resp.GetChanged():
		what = "unchanged"
	}
	fmt.Fprintf(w, "%s %s, version %d (revision %d)%s\n", cli.RefName(ref), what, resp.GetVersion(), resp.GetRevision(), tag)
}

// redial connects the session to the master of a region. The API of that master accepts the
// region's own jobs.
func redial(c *cli.Session, region string) (func(), error) {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	r, err := c.Regions().Get(ctx, &nusav1.GetRegionRequest{Name: region})
	if err != nil {
		return nil, err
	}
	if r.GetMasterAddress() == "" {
		return nil, fmt.Errorf("region %s has no master that is known here: give one of its servers with --addr", region)
	}
	c.Master = region
	return c.Connect(r.GetMasterAddress())
}
