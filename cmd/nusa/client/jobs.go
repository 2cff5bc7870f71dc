package client

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/internal/counts"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func jobCommand() *cobra.Command {
	s := &settings{}
	c := noun("job", "Submit jobs, see where they run and why",
		jobInit(s), jobValidate(s), jobPlan(s), jobRun(s), jobStatus(s), jobLogs(s), jobList(s), jobExport(s), jobExplain(s), jobStop(s), jobAdopt(s))
	s.bind(c)
	s.bindNamespace(c)
	return c
}

func jobInit(s *settings) *cobra.Command {
	var kind, name string
	var force bool
	c := &cobra.Command{
		Use:   "init [FILE]",
		Short: "Write a commented job file to start from",
		Long:  "Writes a commented job file (job.yaml, - is standard output). It does not overwrite a file without --force.",
		Args:  takes("[FILE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.output != "table" {
				return fmt.Errorf("--output: the file is YAML, with comments; %s job validate -o %s FILE writes it without", Program(cmd), s.output)
			}
			jobType, ok := job.ParseType(kind)
			if !ok {
				return fmt.Errorf("--type: %q is not one of service, batch, system", kind)
			}
			if !job.ValidName(name) {
				return fmt.Errorf("--name: %q is not a name: 1 to 63 of a-z, 0-9 and -, starting with a letter", name)
			}
			text, err := job.Sample(name, jobType)
			if err != nil {
				return err
			}
			file := "job.yaml"
			if len(args) == 1 {
				file = args[0]
			}
			if file == "-" {
				_, err = io.WriteString(cmd.OutOrStdout(), text)
				return err
			}
			flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
			if force {
				flags = os.O_WRONLY | os.O_CREATE | os.O_TRUNC
			}
			f, err := os.OpenFile(file, flags, 0o644)
			if os.IsExist(err) {
				return fmt.Errorf("%s exists: name another file, or --force", file)
			}
			if err != nil {
				return err
			}
			if _, err := io.WriteString(f, text); err != nil {
				f.Close()
				return err
			}
			if err := f.Close(); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s written; next: %s job validate %s, %s job run %s\n", file, Program(cmd), file, Program(cmd), file)
			return nil
		},
	}
	c.Flags().StringVar(&kind, "type", "service", "service, batch or system")
	c.Flags().StringVar(&name, "name", "my-job", "name of the job")
	c.Flags().BoolVar(&force, "force", false, "overwrite the file")
	return c
}

func jobValidate(s *settings) *cobra.Command {
	var full bool
	c := &cobra.Command{
		Use:   "validate FILE",
		Short: "Check a job file, without a server",
		Long:  "Checks a job file (- is standard input) without a server. With --full it prints the job with every default filled in.",
		Args:  takes("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := readJob(cmd, args[0], s.namespace)
			if err != nil {
				return err
			}
			spec := file.JobSpec
			job.Default(spec)
			if u := job.Unsupported(spec); len(u) > 0 {
				return file.locate(u)
			}
			format := job.YAML
			if s.output == "json" {
				format = job.JSON
			}
			if full || s.output != "table" {
				text, err := job.Marshal(spec, format)
				if err != nil {
					return err
				}
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			for _, w := range job.Warnings(spec) {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning: "+w)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is a valid job: %s, %s\n", args[0], jobName(spec.GetNamespace(), spec.GetName(), ""), contents(spec))
			return nil
		},
	}
	c.Flags().BoolVar(&full, "full", false, "print the job with every default")
	return c
}

// contents says in short what a job is made of.
func contents(spec *nusav1.JobSpec) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(spec.GetGroups())) {
		g := spec.GetGroups()[name]
		if g.Count == nil {
			parts = append(parts, name+" on every node")
			continue
		}
		parts = append(parts, fmt.Sprintf("%d × %s", g.GetCount(), name))
	}
	return word(spec.GetType()) + " of " + strings.Join(parts, ", ")
}

// jobSource is a job and the file that it was read from.
type jobSource struct {
	*nusav1.JobSpec
	name string
	data []byte
}

// locate gives the problems that an error is about the lines of their fields:
// servers see no file.
func (f *jobSource) locate(err error) error {
	var problems job.Errors
	if !errors.As(err, &problems) {
		for _, p := range rpcerr.Problems(err) {
			problems = append(problems, job.Problem{Field: p.GetField(), Message: p.GetMessage(), Reason: p.GetReason()})
		}
	}
	if !slices.ContainsFunc(problems, func(p job.Problem) bool { return p.Field != "" }) {
		return err
	}
	return job.Locate(f.data, f.name, problems)
}

// readJob parses a file. --namespace fills in what the file leaves open; if
// both say one, and not the same, that is an error: neither may silently lose.
func readJob(cmd *cobra.Command, file, namespace string) (*jobSource, error) {
	data, err := readFile(cmd, file)
	if err != nil {
		return nil, err
	}
	f := &jobSource{name: file, data: data}
	spec, err := job.Parse(data, file)
	if err != nil {
		if name := storedJob(data); name != "" {
			return nil, fmt.Errorf("%s: is what job status prints, not a job file: `nusa job export %s` writes one", file, name)
		}
		return nil, err
	}
	switch {
	case namespace == "" || namespace == spec.GetNamespace():
	case spec.GetNamespace() != "":
		return nil, fmt.Errorf("%s: namespace: is %s in the file and %s by --namespace or NUSA_NAMESPACE", file, spec.GetNamespace(), namespace)
	case !job.ValidName(namespace):
		return nil, fmt.Errorf("--namespace: %q is not a name", namespace)
	default:
		spec.Namespace = namespace
	}
	f.JobSpec = spec
	return f, nil
}

// storedJob is the name of the job whose status a text is, as job status prints
// it with -o; "" of all else.
func storedJob(data []byte) string {
	docs, err := doc.Read(data, false)
	if err != nil || len(docs) != 1 || docs[0].Get("revision") == nil || docs[0].Get("spec") == nil {
		return ""
	}
	name := docs[0].Get("spec").Get("name")
	if name == nil {
		return ""
	}
	return name.Text
}

func jobList(s *settings) *cobra.Command {
	var labels map[string]string
	c := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List jobs of every namespace, or of one", Args: takes(),
		RunE: s.run(func(c *caller, _ []string) error {
			ctx, cancel := c.call()
			defer cancel()
			all := &nusav1.ListJobsResponse{}
			for token := ""; ; {
				page, err := c.jobs().List(ctx, &nusav1.ListJobsRequest{Namespace: c.namespace, Labels: labels, PageToken: token})
				if err != nil {
					return err
				}
				all.Jobs = append(all.Jobs, page.GetJobs()...)
				all.Errors = append(all.Errors, page.GetErrors()...)
				if token = page.GetNextPageToken(); token == "" {
					break
				}
			}
			c.partial(all.GetErrors())
			return c.print(all, func(w io.Writer) { c.view().jobList(w, all.GetJobs(), c.noJobs(labels, unseen(all.GetErrors()))) })
		}),
	}
	c.Flags().StringToStringVarP(&labels, "label", "l", nil, "only jobs with this label, KEY=VALUE")
	return c
}

// noJobs says what was asked for in vain, and what to do next.
func (c *caller) noJobs(labels map[string]string, unseen string) string {
	what, other := "no jobs", ""
	if len(labels) > 0 {
		what, other = what+" with the labels "+labelText(labels), fmt.Sprintf("%s job list%s shows all", c.nusa, c.namespaceFlag())
	}
	if c.namespace != "" {
		what += " in namespace " + c.namespace
		if other == "" {
			other = fmt.Sprintf("without --namespace and NUSA_NAMESPACE, %s job list shows all", c.nusa)
		}
	}
	if other == "" {
		other = fmt.Sprintf("submit one with: %s job run FILE", c.nusa)
	}
	return what + unseen + "; " + other
}

func (v view) jobList(w io.Writer, jobs []*nusav1.Job, none string) {
	if len(jobs) == 0 {
		fmt.Fprintln(w, none)
		return
	}
	t := newTable("JOB", "TYPE", "STATE", ">RUNNING", "REGIONS", ">VERSION", ">AGE", "MESSAGE")
	for _, j := range jobs {
		sum, regions := totals(j.GetStatus())
		t.row(jobName(j.GetSpec().GetNamespace(), j.GetSpec().GetName(), j.GetRegion()), word(j.GetSpec().GetType()),
			v.state(word(j.GetStatus().GetState())), fmt.Sprintf("%d/%d", sum.alive(), sum.desired), orDash(regions),
			fmt.Sprint(j.GetVersion()), v.since(j.GetSubmitted()), plain(j.GetStatus().GetMessage()))
	}
	t.dropEmpty("MESSAGE")
	t.narrow(v.width)
	t.write(w, v.palette)
}

// tally sums a job's groups up.
type tally struct {
	*nusav1.InstanceCounts
	desired, unowned int32
}

// rollout is how far an update has come, "" when every instance has it.
func (t tally) rollout() string {
	if t.Outdated == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d updated", max(t.Starting+t.Running+t.Complete-t.Outdated, 0), t.desired)
}

// alive are instances that run or have done their work.
func (t tally) alive() int32 { return t.Running + t.Complete }

// totals are the counts of all groups, and how many instances each region has:
// "japaneast 1, southeastasia 3".
func totals(s *nusav1.JobStatus) (tally, string) {
	sum := tally{InstanceCounts: &nusav1.InstanceCounts{}}
	regions := map[string]int32{}
	for _, g := range s.GetGroups() {
		sum.desired += g.GetDesired()
		sum.unowned += g.GetUnowned()
		counts.Add(sum.InstanceCounts, g.GetCounts())
		for name, c := range g.GetRegions() {
			regions[name] += c.GetPending() + c.GetStarting() + c.GetRunning() + c.GetComplete()
		}
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(regions)) {
		if regions[name] == 0 {
			continue
		}
		parts = append(parts, fmt.Sprintf("%s %d", name, regions[name]))
	}
	return sum, strings.Join(parts, ", ")
}

func jobStop(s *settings) *cobra.Command {
	var purge bool
	var check int64
	c := &cobra.Command{
		Use: "stop JOB", Short: "Stop every instance of a job", Args: takes("JOB"),
		Long: "Stops every instance of a job. Its record stays, so that it can be looked at and run again, until it is stopped with --purge.",
		RunE: s.run(func(c *caller, args []string) error {
			ref, err := c.ref(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := c.call()
			defer cancel()
			// The answer to a stop does not say whether there was anything to stop.
			was, err := c.jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
			if err != nil {
				return err
			}
			resp, err := c.jobs().Stop(ctx, &nusav1.StopJobRequest{Job: ref, Purge: purge, CheckRevision: check})
			if err != nil {
				return err
			}
			return c.print(resp, func(w io.Writer) { c.stopped(w, ref, was, resp.GetRevision(), purge) })
		}),
	}
	c.Flags().BoolVar(&purge, "purge", false, "also forget the job once everything has stopped")
	c.Flags().Int64Var(&check, "check-revision", 0, "refuse unless the stored job's revision is this")
	return c
}

// stopped says what a stop began, by what the job was before.
func (c *caller) stopped(w io.Writer, ref *nusav1.JobRef, was *nusav1.Job, revision int64, purge bool) {
	if how := endedHow(was); how != "" {
		then := ""
		switch {
		case purge && was.GetRegion() != "":
			then = ", and it is forgotten"
		case purge:
			then = ", and it is forgotten once its regions know of it"
		}
		fmt.Fprintf(w, "%s had %s already: nothing was left to stop (revision %d)%s\n", refName(ref), how, revision, then)
		return
	}
	same := was.GetStopped() && was.GetRevision() == revision
	over := was.GetStatus().GetState() == nusav1.JobState_JOB_STATE_STOPPED && (same || purge) // else somebody ran it meanwhile
	is, then, follow := "stopping", "", fmt.Sprintf("; follow it with: %s job status %s", c.nusa, refArg(ref))
	if purge {
		then = " and is forgotten once everything has stopped"
	}
	if over {
		is, then, follow = "stopped", strings.TrimSuffix(then, " once everything has stopped"), ""
	}
	if same || over {
		is += " already"
	}
	fmt.Fprintf(w, "%s is %s (revision %d)%s%s\n", refName(ref), is, revision, then, follow)
}

// endedHow is how a batch job ended, "" while some of it may run.
func endedHow(j *nusav1.Job) string {
	sum, _ := totals(j.GetStatus())
	if j.GetSpec().GetType() != nusav1.JobType_JOB_TYPE_BATCH || sum.Pending+sum.Starting+sum.Running+sum.Stopping+sum.Lost+sum.unowned > 0 {
		return ""
	}
	switch j.GetStatus().GetState() {
	case nusav1.JobState_JOB_STATE_COMPLETE:
		return "completed"
	case nusav1.JobState_JOB_STATE_FAILED:
		return "failed"
	}
	return ""
}

func refName(r *nusav1.JobRef) string { return jobName(r.GetNamespace(), r.GetName(), r.GetRegion()) }

func jobAdopt(s *settings) *cobra.Command {
	return &cobra.Command{
		Use: "adopt NAME@REGION", Short: "Hand a region's own job to the global tier", Args: takes("NAME@REGION"),
		RunE: s.run(func(c *caller, args []string) error {
			ref, err := c.ref(args[0])
			if err != nil {
				return err
			}
			if ref.GetRegion() == "" {
				return fmt.Errorf("%q names no region: write NAME@REGION", args[0])
			}
			ctx, cancel := c.call()
			defer cancel()
			resp, err := c.jobs().Adopt(ctx, &nusav1.AdoptRequest{Namespace: ref.GetNamespace(), Name: ref.GetName(), Region: ref.GetRegion()})
			if err != nil {
				return err
			}
			c.warnings(resp.GetWarnings())
			return c.print(resp, func(w io.Writer) {
				fmt.Fprintf(w, "%s is now %s, version %d\n", refName(ref), jobName(ref.GetNamespace(), ref.GetName(), ""), resp.GetVersion())
			})
		}),
	}
}
