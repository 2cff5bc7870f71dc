package workflow

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/alloc"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// pollPause is the time between two reads of the state of a run, for each 1,000 steps of the run: each
	// response lists all steps.
	pollPause = 500 * time.Millisecond
	// runTimeout is the default of --timeout.
	runTimeout = time.Hour
)

// Command returns the command `nusa workflow`.
func Command() *cobra.Command {
	s := &cli.Settings{}
	run := runCommand(s)
	c := cli.Noun("workflow", "Run workflows, and show and steer their runs",
		run, listCommand(s), statusCommand(s), graphCommand(s), retryCommand(s), approveCommand(s), cancelCommand(s), logsCommand(s), outputCommand(s))
	for name, here := range map[string]string{"submit": "run", "start": "run", "get": "status", "show": "status", "describe": "status", "resume": "approve", "stop": "cancel", "terminate": "cancel"} {
		cli.Instead(run, "workflow "+here, name) // for the commands beside it
	}
	c.Long = "A run of the workflow etl has a name such as etl.3f9a01bc. The job of its step fetch\nis etl.3f9a01bc--fetch."
	s.Bind(c)
	s.BindNamespace(c)
	return c
}

func client(c *cli.Session) nusav1.WorkflowsClient { return nusav1.NewWorkflowsClient(c.Conn) }

// isFile reports whether an argument is a file, not the name of a workflow.
func isFile(arg string) bool {
	return arg == "-" || strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, ".") || strings.HasSuffix(arg, ".yaml") || strings.HasSuffix(arg, ".yml") || strings.HasSuffix(arg, ".json")
}

func runCommand(s *cli.Settings) *cobra.Command {
	var params []string
	var given cli.Variables
	var key, payload string
	var detach bool
	var timeout time.Duration
	c := &cobra.Command{
		Use: "run FILE|JOB", Short: "Begin a run of a workflow, and wait until it ends", Args: cli.Positional("FILE|JOB"),
		Long: `Begins a run of a stored workflow. A job file (- is standard input) is submitted first,
and then run. The ends of the steps are shown as they come.

Exit codes: 0 succeeded; 1 error; 2 not ended within --timeout, and continues; 3 failed
or canceled.`,
		Example: "  nusa workflow run etl.yaml --param day=2026-11-29\n  nusa workflow run --detach etl",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			values, err := parametersOf(params)
			if err != nil {
				return err
			}
			if timeout <= 0 {
				return fmt.Errorf("--timeout: %s is not positive", timeout)
			}
			req := &nusav1.RunWorkflowRequest{Parameters: values, IdempotencyKey: key}
			if payload != "" {
				if req.Payload, err = cli.ReadPayload(c.Cmd.InOrStdin(), payload); err != nil {
					return err
				}
			}
			if req.Job, err = reference(c, args[0], given); err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			r, err := client(c).Run(ctx, req)
			if err != nil {
				return err
			}
			if detach {
				return c.Print(r, func(w *term.Screen) {
					fmt.Fprintf(w, "%s runs; follow it with: %s workflow status %s\n", runName(r), c.Program, cli.RefArg(refOf(r)))
				})
			}
			return await(c, r, timeout)
		}),
	}
	f := c.Flags()
	f.StringArrayVarP(&params, "param", "p", nil, "NAME=VALUE, a parameter; repeat for more")
	f.StringVar(&payload, "payload", "", "file for the steps with payload: true, at most 64 KiB; - is standard input")
	f.BoolVarP(&detach, "detach", "d", false, "do not wait")
	f.StringVar(&key, "idempotency-key", "", "repeat with the same key to get the same run again")
	f.DurationVar(&timeout, "timeout", runTimeout, "how long to wait until the run ends")
	given.Bind(c)
	return c
}

func parametersOf(texts []string) (map[string]string, error) {
	out := map[string]string{}
	for _, text := range texts {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--param: %q is not NAME=VALUE", text)
		}
		out[name] = value
	}
	return out, nil
}

// reference returns the workflow that an argument names. The workflow of a file is submitted.
func reference(c *cli.Session, arg string, given cli.Variables) (*nusav1.JobRef, error) {
	if !isFile(arg) {
		if flags := given.Again(); flags != "" {
			return nil, fmt.Errorf("%s: these are values of variables of a job file, and %s is a stored workflow: --param gives it parameters", strings.TrimSpace(flags), arg)
		}
		return c.Ref(arg)
	}
	data, err := c.ReadFile(arg)
	if err != nil {
		return nil, err
	}
	values, err := given.Values(c.Cmd)
	if err != nil {
		return nil, err
	}
	specs, err := job.ParseJobs(data, arg, values)
	if err == nil {
		err = values.Undeclared()
	}
	if err == nil && len(specs) != 1 {
		err = fmt.Errorf("%s has %d jobs: submit them with %s job run %s, and then run one by its name", arg, len(specs), c.Program, cli.FileArg(arg))
	}
	if err != nil {
		return nil, err
	}
	spec := specs[0]
	switch {
	case spec.GetWorkflow() == nil:
		return nil, fmt.Errorf("%s is no workflow: run it with %s job run %s", arg, c.Program, arg)
	case spec.GetNamespace() == "":
		spec.Namespace = c.Namespace
	}
	ctx, cancel := c.WithTimeout()
	defer cancel()
	resp, err := c.Jobs().Submit(ctx, &nusav1.SubmitRequest{Spec: spec, IdempotencyKey: rand.Text()})
	if err != nil {
		return nil, cli.Locate(err, data, arg, 0)
	}
	cli.PrintWarnings(c, resp.GetWarnings())
	return &nusav1.JobRef{Namespace: cli.NamespaceOf(spec), Name: spec.GetName()}, nil
}

func runName(r *nusav1.WorkflowRun) string { return cli.JobName(r.GetNamespace(), r.GetName(), "") }

func refOf(r *nusav1.WorkflowRun) *nusav1.JobRef {
	return &nusav1.JobRef{Namespace: r.GetNamespace(), Name: r.GetName()}
}

// ended reports whether a run has ended.
func ended(r *nusav1.WorkflowRun) bool {
	return r.GetState() >= nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_SUCCEEDED
}

// await waits until a run has ended, and shows the ends of its steps as they come.
func await(c *cli.Session, r *nusav1.WorkflowRun, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(c.Ctx, timeout)
	defer cancel()
	table := c.Output == "table"
	if table {
		fmt.Fprintf(c.Out, "%s runs\n", runName(r))
	}
	shown, failed := map[string]nusav1.StepState{}, ""
	resumed := cli.Resumed{Session: c}
	err := resumed.Follow(ctx, func(answered func()) error {
		for {
			all, err := steps(ctx, c, refOf(r), &nusav1.GetWorkflowRunRequest{})
			if err != nil {
				return err
			}
			answered()
			r = all.GetRun()
			if table {
				showEnds(c, all, shown)
			}
			if ended(r) {
				failed = firstFailed(all)
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pauseFor(len(all.GetSteps()))):
			}
		}
	})
	switch {
	case c.Interrupted():
		return fmt.Errorf("%s continues; see %s workflow status %s", runName(r), c.Program, cli.RefArg(refOf(r)))
	case ctx.Err() != nil:
		return &cli.ExitError{Code: cli.ExitWaiting, Err: fmt.Errorf("%s has not ended within %s and continues; see %s workflow status %s", runName(r), timeout, c.Program, cli.RefArg(refOf(r)))}
	case err != nil:
		return err
	}
	if err := c.Print(r, func(w *term.Screen) {
		fmt.Fprintf(w, "%s %s%s\n", runName(r), w.State(term.Word(r.GetState())), why(r.GetMessage()))
	}); err != nil {
		return err
	}
	if r.GetState() != nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_SUCCEEDED {
		if table {
			writeNext(c, r, failed)
		}
		return &cli.ExitError{Code: cli.ExitFailed}
	}
	return nil
}

// writeNext says what a user can do about a run that has failed. failed is its first step that did, or "".
func writeNext(c *cli.Session, r *nusav1.WorkflowRun, failed string) {
	if failed == "" {
		return
	}
	run := cli.RefArg(refOf(r))
	fmt.Fprintf(c.Out, "what it wrote:   %s workflow logs %s %s\nto run it again: %s workflow retry %s --from %s\n", c.Program, run, failed, c.Program, run, failed)
}

// firstFailed returns the first step that did not succeed and was not skipped, or "".
func firstFailed(all *nusav1.WorkflowRunStatus) string {
	for _, st := range all.GetSteps() {
		switch st.GetState() {
		case nusav1.StepState_STEP_STATE_FAILED, nusav1.StepState_STEP_STATE_LOST, nusav1.StepState_STEP_STATE_TIMED_OUT:
			return st.GetStep()
		}
	}
	return ""
}

// pauseFor returns the time until the next question about a run with so many steps and items.
func pauseFor(steps int) time.Duration { return pollPause * time.Duration(1+steps/1000) }

func why(message string) string {
	if message == "" {
		return ""
	}
	return ": " + term.OneLine(message)
}

// showEnds shows the steps that have ended since the latest call, and those that wait for an approval.
func showEnds(c *cli.Session, all *nusav1.WorkflowRunStatus, shown map[string]nusav1.StepState) {
	w := c.Screen()
	for _, st := range all.GetSteps() {
		name, state := stepName(st), st.GetState()
		if state < nusav1.StepState_STEP_STATE_SUCCEEDED && state != nusav1.StepState_STEP_STATE_APPROVAL || shown[name] == state {
			continue
		}
		shown[name] = state
		if state == nusav1.StepState_STEP_STATE_APPROVAL {
			fmt.Fprintf(w, "  %s waits: %s workflow approve %s %s\n", name, c.Program, cli.RefArg(refOf(all.GetRun())), st.GetStep())
			continue
		}
		fmt.Fprintf(w, "  %s %s%s\n", name, w.State(term.Word(state)), why(st.GetMessage()))
	}
}

// stepName returns the name of a step, with the number of its item.
func stepName(st *nusav1.StepStatus) string {
	if st.Index == nil {
		return st.GetStep()
	}
	return fmt.Sprintf("%s[%d]", st.GetStep(), st.GetIndex())
}

const runState = nusav1.WorkflowRunState_WORKFLOW_RUN_STATE_UNSPECIFIED

func listCommand(s *cli.Settings) *cobra.Command {
	var labels map[string]string
	var states *cli.States
	c := &cobra.Command{
		Use: "list [JOB]", Short: "List the runs of a workflow, or of all", Args: cli.Positional("[JOB]"),
		RunE: s.Run(func(c *cli.Session, args []string) error {
			req := &nusav1.ListWorkflowRunsRequest{Namespace: c.Namespace, States: cli.Enums(states, runState), Labels: labels}
			if len(args) > 0 {
				ref, err := c.Ref(args[0])
				if err != nil {
					return err
				}
				req.Namespace, req.Workflow = ref.GetNamespace(), ref.GetName()
			}
			out := &nusav1.ListWorkflowRunsResponse{}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			err := cli.Pages(func(token string) (string, error) {
				req.PageToken = token
				page, err := client(c).List(ctx, req)
				out.Runs = append(out.Runs, page.GetRuns()...)
				return page.GetNextPageToken(), err
			})
			if err != nil {
				return err
			}
			if len(out.GetRuns()) == 0 && req.GetWorkflow() != "" {
				if _, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: &nusav1.JobRef{Namespace: req.GetNamespace(), Name: req.GetWorkflow()}}); err != nil {
					return err
				}
			}
			if err := cli.CheckLabels(labels, len(out.GetRuns()), func(labels map[string]string) (int, error) {
				req.Labels, req.PageToken, req.Limit = labels, "", 1
				page, err := client(c).List(ctx, req)
				return len(page.GetRuns()), err
			}); err != nil {
				return err
			}
			out.Runs = slices.DeleteFunc(out.Runs, func(r *nusav1.WorkflowRun) bool { return !states.Has(term.Word(r.GetState())) }) // a server of an earlier version does not select
			slices.SortStableFunc(out.Runs, func(x, y *nusav1.WorkflowRun) int { return y.GetBegan().AsTime().Compare(x.GetBegan().AsTime()) })
			return c.Print(out, func(w *term.Screen) {
				writeRuns(w, out, cli.NoneSuch(c.Program, "runs", "workflow list", states, labels))
			})
		}),
	}
	cli.LabelFlag(c, &labels, "runs of workflows")
	states = cli.EnumStateFlag(c, "runs", runState)
	return c
}

// writeRuns writes a table of runs. none says that no run matched the filters.
func writeRuns(w *term.Screen, out *nusav1.ListWorkflowRunsResponse, none string) {
	if len(out.GetRuns()) == 0 {
		if none == "" {
			none = "no run; begin one with: " + term.Whole(w.Program+" workflow run FILE")
		}
		w.Note("", none+". Runs inside others: "+term.Whole(w.Program+" workflow status RUN"))
		return
	}
	t := term.NewTable("RUN", "STATE", ">STEPS", ">BAD", "BEGAN", "BY", "#MESSAGE")
	for _, r := range out.GetRuns() {
		t.Row(runName(r), w.State(term.Word(r.GetState())), fmt.Sprintf("%d/%d", r.GetStepsEnded(), r.GetSteps()), term.Count(r.GetStepsFailed()), w.Since(r.GetBegan()), by(r), term.OneLine(r.GetMessage()))
	}
	t.DropEmpty("BAD", "BY", "MESSAGE")
	t.Write(w)
}

// by says why a run began, unless a caller began it.
func by(r *nusav1.WorkflowRun) string {
	if r.GetTime() == nil {
		return ""
	}
	return term.Word(r.GetTrigger())
}

// steer returns the body of a command that changes a run. done says what it did.
func steer(s *cli.Settings, call func(context.Context, *cli.Session, *nusav1.JobRef, []string) (*nusav1.WorkflowRun, error), done func(*nusav1.WorkflowRun, []string) string) func(*cobra.Command, []string) error {
	return s.Run(func(c *cli.Session, args []string) error {
		ref, err := c.Ref(args[0])
		if err != nil {
			return err
		}
		ctx, cancel := c.WithTimeout()
		defer cancel()
		r, err := call(ctx, c, ref, args[1:])
		if err != nil {
			return err
		}
		return c.Print(r, func(w *term.Screen) { fmt.Fprintln(w, done(r, args[1:])) })
	})
}

func retryCommand(s *cli.Settings) *cobra.Command {
	var from string
	c := &cobra.Command{
		Use: "retry RUN --from STEP", Short: "Run a step, and all that depend on it, again", Args: cli.Positional("RUN"),
		Long:    "Runs a step of a run that has ended, and all steps that depend on it, again. The other\nsteps keep their ends. STEP/STEP is a step of the run of a step: that run goes on.",
		Example: "  nusa workflow retry etl.3f9a01bc --from train\n  nusa workflow retry etl.3f9a01bc --from train/fit",
		RunE: steer(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, _ []string) (*nusav1.WorkflowRun, error) {
			if from == "" {
				return nil, errors.New("--from is missing: the first step to run again")
			}
			return client(c).Retry(ctx, &nusav1.RetryWorkflowRequest{Run: ref, From: from})
		}, func(r *nusav1.WorkflowRun, _ []string) string { return runName(r) + " runs again from " + from }),
	}
	c.Flags().StringVar(&from, "from", "", "the first step to run again")
	return c
}

func approveCommand(s *cli.Settings) *cobra.Command {
	var reject bool
	var reason string
	c := &cobra.Command{
		Use: "approve RUN STEP", Short: "Let a step start that waits for an approval", Args: cli.Positional("RUN", "STEP"),
		Example: "  nusa workflow approve release.3f9a01bc gate --reason 'tests are green'\n  nusa workflow approve release.3f9a01bc gate --reject",
		RunE: steer(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, args []string) (*nusav1.WorkflowRun, error) {
			return client(c).Approve(ctx, &nusav1.ApproveWorkflowRequest{Run: ref, Step: args[0], Reject: reject, Reason: reason})
		}, func(r *nusav1.WorkflowRun, args []string) string {
			if reject {
				return "step " + args[0] + " of " + runName(r) + " is refused"
			}
			return "step " + args[0] + " of " + runName(r) + " is approved"
		}),
	}
	c.Flags().BoolVar(&reject, "reject", false, "refuse it: the step fails")
	c.Flags().StringVar(&reason, "reason", "", "why, for people")
	return c
}

func cancelCommand(s *cli.Settings) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "cancel RUN", Short: "Stop the jobs of a run, and start no further steps", Args: cli.Positional("RUN"),
		Long: "Stops the active jobs of a run. No further step starts, except on_exit.",
		RunE: steer(s, func(ctx context.Context, c *cli.Session, ref *nusav1.JobRef, _ []string) (*nusav1.WorkflowRun, error) {
			return client(c).Cancel(ctx, &nusav1.CancelWorkflowRequest{Run: ref, Reason: reason})
		}, func(r *nusav1.WorkflowRun, _ []string) string { return runName(r) + " is " + term.Word(r.GetState()) }),
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for people")
	return c
}

func logsCommand(s *cli.Settings) *cobra.Command {
	var item int32
	c := alloc.StepLogsCommand(s, func(c *cli.Session, args []string) (string, error) {
		ref, err := c.Ref(args[0])
		if err != nil {
			return "", err
		}
		ctx, cancel := c.WithTimeout()
		defer cancel()
		all, err := steps(ctx, c, ref, &nusav1.GetWorkflowRunRequest{Step: args[1]})
		if err != nil {
			return "", err
		}
		at := slices.IndexFunc(all.GetSteps(), func(st *nusav1.StepStatus) bool { return st.Index == nil || st.GetIndex() == item })
		switch {
		case at < 0:
			return "", fmt.Errorf("step %s has %d items: --item is 0 to %d", args[1], len(all.GetSteps()), len(all.GetSteps())-1)
		case all.GetSteps()[at].GetRun() != "":
			st := stepName(all.GetSteps()[at])
			return "", fmt.Errorf("step %s is a workflow: name one of its steps, as %s/STEP; %s workflow status %s shows them", st, st, c.Program, cli.RefArg(ref))
		case all.GetSteps()[at].GetJob() == "":
			return "", fmt.Errorf("step %s is %s: it has written nothing", stepName(all.GetSteps()[at]), term.Word(all.GetSteps()[at].GetState()))
		}
		return ref.GetNamespace() + "/" + all.GetSteps()[at].GetJob(), nil
	})
	c.Flags().Int32Var(&item, "item", 0, "number of the item of a step with foreach")
	return c
}
