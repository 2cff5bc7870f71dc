package job

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/doc"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func validateCommand(s *cli.Settings) *cobra.Command {
	var full, verbose bool
	c := &cobra.Command{
		Use:   "validate FILE",
		Short: "Check a job file, without a server",
		Long:  "Checks a job file (- is standard input) without a server. --full prints the job with\nevery default filled in.",
		Args:  cli.Positional("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := readJob(cmd, args[0], s.Namespace)
			if err != nil {
				return err
			}
			spec := file.JobSpec
			job.Default(spec)
			if u := job.Unsupported(spec); len(u) > 0 {
				return file.locate(u)
			}
			format := job.YAML
			if s.Output == "json" {
				format = job.JSON
			}
			if full || s.Output != "table" {
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
			for _, d := range job.FurtherDrivers(spec) {
				fmt.Fprintf(cmd.ErrOrStderr(), "note: driver %s is not one of Nusa's own (docker, incus, process): a node needs a plugin of this name\n", d)
			}
			if verbose {
				for _, n := range job.Notes(spec) {
					fmt.Fprintln(cmd.ErrOrStderr(), "note: "+n)
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is a valid job: %s, %s\n", args[0], cli.JobName(spec.GetNamespace(), spec.GetName(), ""), contents(spec))
			return nil
		},
	}
	c.Flags().BoolVar(&full, "full", false, "print the job with every default")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "also show notes about the job that need no action")
	return c
}

// contents describes the groups of a job, for example "service of 2 × web".
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
	return term.Word(spec.GetType()) + " of " + strings.Join(parts, ", ")
}

// jobSource is a job and the file that it was read from.
type jobSource struct {
	*nusav1.JobSpec
	name string
	data []byte
}

// locate adds the lines of the file to the problems in err, which a server reports with
// field names only.
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

// readJob parses a job file. --namespace sets the namespace of a file that names none. If
// the file names another namespace, readJob returns an error, so that no namespace is
// ignored silently.
func readJob(cmd *cobra.Command, file, namespace string) (*jobSource, error) {
	data, err := cli.ReadFile(cmd, file)
	if err != nil {
		return nil, err
	}
	f := &jobSource{name: file, data: data}
	spec, err := job.Parse(data, file)
	if err != nil {
		if name := storedJob(data); name != "" {
			return nil, fmt.Errorf("%s: is the output of job status, not a job file: `nusa job export %s` writes one", file, name)
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

// storedJob returns the name of the job if data is the output of job status with -o, else
// "".
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
