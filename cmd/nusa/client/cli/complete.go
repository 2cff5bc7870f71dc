package cli

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// completeTime bounds the request of the shell. A user who presses Tab does not wait longer.
	completeTime = time.Second
	// completeMost bounds the names that one completion returns.
	completeMost = 1000
)

// lists has the calls that return the names for arguments and flags, by the word for the argument in the usage line. A
// word that means something else with each noun has the noun before it.
var lists = map[string]func(ctx context.Context, c *Session) (proto.Message, error){
	"JOB": jobs,
	"NODE": func(ctx context.Context, c *Session) (proto.Message, error) {
		out, err := c.Nodes().List(ctx, &nusav1.ListNodesRequest{Region: c.Region})
		for _, n := range out.GetNodes() {
			n.Id = n.GetName() // users type names; a name that is not unique needs --region
		}
		return out, err
	},
	"REGION": func(ctx context.Context, c *Session) (proto.Message, error) {
		return c.Regions().List(ctx, &nusav1.ListRegionsRequest{})
	},
	"alloc ID": func(ctx context.Context, c *Session) (proto.Message, error) {
		return c.Allocs().List(ctx, &nusav1.ListAllocationsRequest{Region: c.Region, Limit: completeMost})
	},
	"bus NAME": func(ctx context.Context, c *Session) (proto.Message, error) {
		return nusav1.NewBusesClient(c.Conn).List(ctx, &nusav1.ListBusesRequest{})
	},
	"deadletter ID": func(ctx context.Context, c *Session) (proto.Message, error) {
		return nusav1.NewDeadLettersClient(c.Conn).List(ctx, &nusav1.ListDeadLettersRequest{Namespace: c.Namespace, Limit: completeMost})
	},
	"intake NAME": func(ctx context.Context, c *Session) (proto.Message, error) {
		return nusav1.NewIntakesClient(c.Conn).List(ctx, &nusav1.ListIntakesRequest{})
	},
	"namespace NAME": namespaces,
	"reservation ID": func(ctx context.Context, c *Session) (proto.Message, error) {
		return nusav1.NewReservationsClient(c.Conn).List(ctx, &nusav1.ListReservationsRequest{})
	},
	"semaphore NAME": func(ctx context.Context, c *Session) (proto.Message, error) {
		return nusav1.NewSemaphoresClient(c.Conn).List(ctx, &nusav1.ListSemaphoresRequest{Namespace: c.Namespace})
	},
	"service NAME": func(ctx context.Context, c *Session) (proto.Message, error) {
		return nusav1.NewServicesClient(c.Conn).List(ctx, &nusav1.ListServicesRequest{Namespace: cmp.Or(c.Namespace, job.DefaultNamespace)})
	},
	"spare ID": func(ctx context.Context, c *Session) (proto.Message, error) {
		return nusav1.NewSparesClient(c.Conn).List(ctx, &nusav1.ListSparesRequest{})
	},
	"webhook NAME": func(ctx context.Context, c *Session) (proto.Message, error) {
		return nusav1.NewWebhooksClient(c.Conn).List(ctx, &nusav1.ListWebhooksRequest{})
	},
	"workflow RUN": func(ctx context.Context, c *Session) (proto.Message, error) {
		return nusav1.NewWorkflowsClient(c.Conn).List(ctx, &nusav1.ListWorkflowRunsRequest{Namespace: c.Namespace, Limit: completeMost})
	},
}

func namespaces(ctx context.Context, c *Session) (proto.Message, error) {
	return nusav1.NewNamespacesClient(c.Conn).List(ctx, &nusav1.ListNamespacesRequest{})
}

const (
	// group is the word for a group of the job that the first argument names, and version for a version of it.
	group, version = "GROUP", "VERSION"
	// step is the word for a step of the run of a workflow that the first argument names.
	step = "STEP"
	// label is the word for a label KEY=VALUE of the objects of a noun, and tag for a tag of a service.
	label, tag = "LABEL", "TAG"
)

// alike has the words of usage lines that stand for other words.
var alike = map[string][]string{
	"job FROM":      {version},
	"job TO":        {version},
	"topology FROM": {"REGION"},
	"topology TO":   {"REGION"},
	"status NAME":   {"JOB", "workflow RUN", "REGION", "NODE"},
}

// labeled has the lists of nouns whose objects have labels of their own. The lists of other nouns select by labels of jobs.
var labeled = map[string]string{"node": "NODE", "region": "REGION", "reservation": "reservation ID"}

// labelsOf adds the labels of a message to a list, as KEY=VALUE: those of the objects of a list, or of one object.
func labelsOf(m protoreflect.Message, out []string) []string {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() && f.Name() == "labels" && f.MapValue().Kind() == protoreflect.StringKind:
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				out = append(out, k.String()+"="+v.String())
				return true
			})
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				out = labelsOf(v.List().Get(i).Message(), out)
			}
		case !f.IsMap() && f.Message() != nil && slices.Contains(labelFields, f.Name()):
			out = labelsOf(v.Message(), out)
		}
		return true
	})
	return out
}

// labelFields are the fields of objects whose messages have the labels.
var labelFields = []protoreflect.Name{"spec", "definition", "inventory", "request"}

// tags returns the tags of the services of a namespace.
func tags(ctx context.Context, c *Session) (out []string, err error) {
	all, err := nusav1.NewServicesClient(c.Conn).List(ctx, &nusav1.ListServicesRequest{Namespace: cmp.Or(c.Namespace, job.DefaultNamespace)})
	for _, s := range all.GetServices() {
		out = append(out, s.GetTags()...)
	}
	return out, err
}

// versions returns the stored versions of a job, and their tags unless only numbers are wanted.
func versions(ctx context.Context, c *Session, name string, numbers bool) (out []string, err error) {
	ref, err := c.Ref(name)
	if err != nil {
		return nil, err
	}
	all, err := nusav1.NewRolloutsClient(c.Conn).History(ctx, &nusav1.JobHistoryRequest{Job: ref})
	for _, v := range all.GetVersions() {
		out = append(out, strconv.FormatInt(v.GetVersion(), 10))
		if v.GetTag() != "" && !numbers {
			out = append(out, v.GetTag())
		}
	}
	return out, err
}

// stepNames returns the names of the steps of a run. waiting: only of those that wait for an approval.
func stepNames(ctx context.Context, c *Session, run string, waiting bool) (out []string, err error) {
	ref, err := c.Ref(run)
	if err != nil {
		return nil, err
	}
	req := &nusav1.GetWorkflowRunRequest{Run: ref}
	if waiting {
		req.State = nusav1.StepState_STEP_STATE_APPROVAL
	}
	all, err := nusav1.NewWorkflowsClient(c.Conn).Get(ctx, req)
	for _, s := range all.GetSteps() {
		out = append(out, s.GetStep())
	}
	return out, err
}

// groups returns the names of the groups of a job.
func groups(ctx context.Context, c *Session, name string) ([]string, error) {
	ref, err := c.Ref(name)
	if err != nil {
		return nil, err
	}
	j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
	return slices.Collect(maps.Keys(j.GetSpec().GetGroups())), err
}

// jobs returns all jobs, or those that it has when the time is over.
func jobs(ctx context.Context, c *Session) (proto.Message, error) {
	out, token := &nusav1.ListJobsResponse{}, ""
	for {
		page, err := c.Jobs().List(ctx, &nusav1.ListJobsRequest{Namespace: c.Namespace, Limit: completeMost, PageToken: token, Brief: true})
		if err != nil && len(out.GetJobs()) == 0 {
			return nil, err
		}
		for _, j := range page.GetJobs() {
			j.Spec, j.Status = &nusav1.JobSpec{Namespace: j.GetSpec().GetNamespace(), Name: j.GetSpec().GetName(), Labels: j.GetSpec().GetLabels()}, nil // nothing else is needed
			out.Jobs = append(out.Jobs, j)
		}
		token = page.GetNextPageToken()
		if err != nil || token == "" {
			return out, nil
		}
	}
}

// flagLists maps flags to the names that they take. Some mean that only with one verb, which is before the flag.
var flagLists = map[string]string{
	"region": "REGION", "node": "NODE", "job": "JOB", "group": group, "label": label, "latency to": "REGION",
	"revert to": version, "tag version": version, "retry from": step, "status step": step, "list tag": tag, "resolve tag": tag,
}

// complete lets the shell complete the arguments and flags of a noun's verbs with the names that the server has.
func (s *Settings) complete(noun *cobra.Command, formats []string) {
	_ = noun.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)) // fails only without the flag
	verbs := append(noun.Commands(), noun)
	for i := 0; i < len(verbs); i++ {
		verb := verbs[i]
		if verb != noun {
			verbs = append(verbs, verb.Commands()...)
		}
		words := argumentsOf(verb.Use)
		if verb.ValidArgsFunction == nil && slices.ContainsFunc(words, func(w string) bool { return len(kindsOf(noun.Name(), w)) > 0 }) {
			verb.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
				at := min(len(args), len(words)-1)
				if len(args) > at && !strings.HasSuffix(words[at], "...]") {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				return s.names(cmd, args, begun, kindsOf(noun.Name(), words[at])...)
			}
		}
		flags := verb.Flags()
		if verb != noun {
			flags = verb.LocalNonPersistentFlags()
		}
		for flag, kind := range flagLists {
			if of, name, ok := strings.Cut(flag, " "); ok {
				if of != verb.Name() {
					continue
				}
				flag = name
			}
			if flags.Lookup(flag) != nil {
				_ = verb.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
					return s.names(cmd, args, begun, kind)
				})
			}
		}
	}
}

// argumentsOf returns the words of a usage line that stand for arguments, such as JOB or [REGION].
func argumentsOf(use string) []string {
	var out []string
	for _, word := range strings.Fields(use)[1:] {
		if strings.HasPrefix(word, "-") {
			break
		}
		out = append(out, word)
	}
	return out
}

// kindsOf returns the keys of lists for a word of a usage line, and group, version and step for these words.
func kindsOf(noun, word string) (out []string) {
	for kind := range strings.SplitSeq(strings.Trim(word, "[]."), "|") {
		for _, key := range []string{kind, noun + " " + kind} {
			out = append(out, alike[key]...)
			if key == group || key == step && noun == "workflow" || lists[key] != nil {
				out = append(out, key)
			}
		}
	}
	return out
}

// names returns the names of the server that begin with a text. It returns none if the server does not respond in time,
// because a shell shows no errors.
func (s *Settings) names(cmd *cobra.Command, args []string, begun string, kinds ...string) (out []cobra.Completion, directive cobra.ShellCompDirective) {
	_ = s.Run(func(c *Session, _ []string) error {
		ctx, cancel := context.WithTimeout(c.Ctx, completeTime)
		defer cancel()
		for _, kind := range kinds {
			all, _ := namesFor(ctx, c, cmd, kind, args) // another kind may have names
			for _, name := range all {
				if !strings.Contains(begun, "/") { // a name alone means a job of this namespace
					name = strings.TrimPrefix(name, cmp.Or(c.Namespace, job.DefaultNamespace)+"/")
				}
				if strings.HasPrefix(name, begun) && len(out) < completeMost {
					out = append(out, name)
				}
			}
		}
		return nil
	})(cmd, nil)
	slices.Sort(out)
	return slices.Compact(out), cobra.ShellCompDirectiveNoFileComp
}

// namesFor returns all names for a key of lists, or the groups or versions of the job or the steps of the run in the
// arguments.
func namesFor(ctx context.Context, c *Session, cmd *cobra.Command, kind string, args []string) ([]string, error) {
	of := "" // the first argument
	if len(args) > 0 {
		of = args[0]
	}
	key := kind
	switch kind {
	case group, step, version:
		if of == "" {
			return nil, nil
		}
	case label:
		key = cmp.Or(labeled[cmd.Parent().Name()], "JOB")
	}
	switch kind {
	case group:
		return groups(ctx, c, of)
	case version:
		return versions(ctx, c, of, cmd.Name() == "tag")
	case step:
		return stepNames(ctx, c, of, cmd.Name() == "approve")
	case tag:
		return tags(ctx, c)
	}
	m, err := lists[key](ctx, c)
	if err != nil {
		return nil, err
	}
	if kind == label {
		return labelsOf(m.ProtoReflect(), nil), nil
	}
	all, _ := namesOf(m.ProtoReflect())
	return all, nil
}
