package cli

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// completeTime bounds the request of the shell. A user who presses Tab does not wait longer.
	completeTime = time.Second
	// completeMost bounds the names that one completion returns.
	completeMost = 1000
)

// lists has the calls that return the names for arguments and flags, by the word for the argument in the usage line, or
// by "--" and the flag.
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
	"ID": func(ctx context.Context, c *Session) (proto.Message, error) {
		return c.Allocs().List(ctx, &nusav1.ListAllocationsRequest{Region: c.Region, Limit: completeMost})
	},
}

// jobs returns all jobs, or those that it has when the time is over.
func jobs(ctx context.Context, c *Session) (proto.Message, error) {
	out, token := &nusav1.ListJobsResponse{}, ""
	for {
		page, err := c.Jobs().List(ctx, &nusav1.ListJobsRequest{Namespace: c.Namespace, Limit: completeMost, PageToken: token})
		if err != nil && len(out.GetJobs()) == 0 {
			return nil, err
		}
		for _, j := range page.GetJobs() {
			j.Spec, j.Status = &nusav1.JobSpec{Namespace: j.GetSpec().GetNamespace(), Name: j.GetSpec().GetName()}, nil // the names are enough
			out.Jobs = append(out.Jobs, j)
		}
		token = page.GetNextPageToken()
		if err != nil || token == "" {
			return out, nil
		}
	}
}

// flagLists maps flags to the names that they take.
var flagLists = map[string]string{"region": "REGION", "node": "NODE", "job": "JOB"}

// complete lets the shell complete the arguments and flags of a noun's verbs with the names that the server has.
func (s *Settings) complete(noun *cobra.Command, formats []string) {
	_ = noun.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)) // fails only without the flag
	verbs := noun.Commands()
	for i := 0; i < len(verbs); i++ {
		verb := verbs[i]
		verbs = append(verbs, verb.Commands()...)
		words := argumentsOf(verb.Use)
		if verb.ValidArgsFunction == nil && slices.ContainsFunc(words, func(w string) bool { return len(kindsOf(w)) > 0 }) {
			verb.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
				at := min(len(args), len(words)-1)
				if len(args) > at && !strings.HasSuffix(words[at], "...]") {
					return nil, cobra.ShellCompDirectiveNoFileComp
				}
				return s.names(cmd, begun, kindsOf(words[at])...)
			}
		}
		for flag, kind := range flagLists {
			if verb.LocalNonPersistentFlags().Lookup(flag) != nil {
				_ = verb.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
					return s.names(cmd, begun, kind)
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

// kindsOf returns the keys of lists for a word of a usage line.
func kindsOf(word string) (out []string) {
	for kind := range strings.SplitSeq(strings.Trim(word, "[]."), "|") {
		if lists[kind] != nil {
			out = append(out, kind)
		}
	}
	return out
}

// names returns the names of the server that begin with a text. It returns none if the server does not respond in time,
// because a shell shows no errors.
func (s *Settings) names(cmd *cobra.Command, begun string, kinds ...string) (out []cobra.Completion, directive cobra.ShellCompDirective) {
	_ = s.Run(func(c *Session, _ []string) error {
		ctx, cancel := context.WithTimeout(c.Ctx, completeTime)
		defer cancel()
		for _, kind := range kinds {
			m, err := lists[kind](ctx, c)
			if err != nil {
				return err
			}
			all, _ := namesOf(m.ProtoReflect())
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
