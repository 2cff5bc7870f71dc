package job

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	"github.com/nusa-scheduler/nusa/job/doc"
	"github.com/nusa-scheduler/nusa/job/vars"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func validateCommand(s *cli.Settings) *cobra.Command {
	var full, verbose bool
	var given cli.Variables
	var files []string
	c := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check a job file, without a server",
		Long:  "Checks the jobs of files (- is standard input) and folders without a server. --full prints\neach job with every default filled in.",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			args, err := filesOf(cmd, args, files)
			if err != nil {
				return err
			}
			jobs, err := readJobs(cmd, args, s.Namespace, given)
			if err != nil {
				return err
			}
			for i, j := range jobs {
				if i > 0 && (full || s.Output == "yaml") {
					fmt.Fprintln(cmd.OutOrStdout(), "---")
				}
				if err := validate(cmd, s, j, full, verbose); err != nil {
					return err
				}
			}
			return nil
		},
	}
	addFileFlag(c, &files)
	c.Flags().BoolVar(&full, "full", false, "print the job with every default")
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "also show notes about the job that need no action")
	given.Bind(c)
	return c
}

// addFileFlag adds the flag -f, beside the arguments FILE.
func addFileFlag(c *cobra.Command, files *[]string) {
	c.Flags().StringArrayVarP(files, "file", "f", nil, "file or folder with jobs; may be repeated")
}

// filesOf returns the files of the arguments and of the flag -f.
func filesOf(c *cobra.Command, args, files []string) ([]string, error) {
	if len(args)+len(files) == 0 {
		return nil, fmt.Errorf("FILE is missing: see %s --help", c.CommandPath())
	}
	return slices.Concat(args, files), nil
}

// validate checks one job and prints the outcome.
func validate(cmd *cobra.Command, s *cli.Settings, file *jobSource, full, verbose bool) error {
	spec := file.JobSpec
	job.Default(spec)
	if u := job.Unsupported(spec); len(u) > 0 {
		return file.locate(u)
	}
	if full || s.Output != "table" {
		format := job.YAML
		if s.Output == "json" {
			format = job.JSON
		}
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
		fmt.Fprintf(cmd.ErrOrStderr(), "note: driver %s is not one of Nusa's own (docker, incus, process, reserve): a node needs a plugin of this name\n", d)
	}
	if verbose {
		for _, n := range job.Notes(spec) {
			fmt.Fprintln(cmd.ErrOrStderr(), "note: "+n)
		}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s is a valid job: %s, %s\n", file.name, cli.JobName(spec.GetNamespace(), spec.GetName(), ""), contents(spec))
	return nil
}

// contents describes the groups of a job, for example "service of 2 × web".
func contents(spec *nusav1.JobSpec) string {
	if n := len(spec.GetWorkflow().GetSteps()); n > 0 {
		return "workflow of " + term.Plural(n, "step")
	}
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
	at   int // place of the job in the file, from 0
}

// locate adds the lines of the file to the problems in err, which a server reports with
// field names only.
func (f *jobSource) locate(err error) error { return cli.Locate(err, f.data, f.name, f.at) }

// readJobs reads the jobs of files and of folders, in the order of the names in a folder. No job may be
// given twice.
func readJobs(cmd *cobra.Command, names []string, namespace string, given cli.Variables) (all []*jobSource, err error) {
	values, err := given.Values(cmd)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, name := range names {
		inside, err := jobFiles(name)
		if err != nil {
			return nil, err
		}
		files = append(files, inside...)
	}
	where, size := map[string]string{}, 0
	for _, file := range files {
		jobs, err := readFile(cmd, file, namespace, values)
		if err != nil {
			return nil, err
		}
		for _, j := range jobs {
			name := cli.JobName(cli.NamespaceOf(j.JobSpec), j.GetName(), "")
			if before, twice := where[name]; twice {
				return nil, fmt.Errorf("%s: job %s is in %s, too", file, name, before)
			}
			where[name] = file
		}
		all = append(all, jobs...)
		if len(jobs) > 0 {
			size += len(jobs[0].data)
		}
		if len(all) > maxJobs || size > maxBytes {
			return nil, fmt.Errorf("more than %d jobs, or than %d MiB of job files: submit them in several calls", maxJobs, maxBytes>>20)
		}
	}
	return all, values.Undeclared()
}

// maxJobs and maxBytes bound the jobs of one call and their files, since all are checked before the first one is
// submitted. Jobs of many short fields take 30 times the size of their files in memory, so 0.5 GiB at most.
const (
	maxJobs  = 10_000
	maxBytes = 16 << 20
)

// jobFiles returns the job files in a folder, sorted by name, or the file itself.
func jobFiles(name string) ([]string, error) {
	info, err := os.Stat(name)
	if err != nil || !info.IsDir() {
		return []string{name}, nil // standard input, or a file: reading it says what is wrong with it
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".yaml" || ext == ".yml" || ext == ".json") {
			out = append(out, filepath.Join(name, e.Name()))
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: the folder has no file with the ending .yaml, .yml or .json", name)
	}
	return out, nil
}

// readFile reads the jobs of a file.
func readFile(cmd *cobra.Command, file, namespace string, values *vars.Values) (out []*jobSource, err error) {
	data, err := cli.ReadFile(cmd, file)
	if err != nil {
		return nil, err
	}
	specs, err := job.ParseJobs(data, file, values)
	if err != nil {
		if name := storedJob(data); name != "" {
			return nil, fmt.Errorf("%s: is the output of job status, not a job file: `nusa job export %s` writes one", file, name)
		}
		return nil, err
	}
	for i, spec := range specs {
		if err := setNamespace(spec, file, namespace); err != nil {
			return nil, err
		}
		out = append(out, &jobSource{JobSpec: spec, name: file, data: data, at: i})
	}
	return out, nil
}

// setNamespace gives the namespace of --namespace to a job whose file names none. If the file names
// another namespace, setNamespace returns an error, so that no namespace is ignored silently.
func setNamespace(spec *nusav1.JobSpec, file, namespace string) error {
	switch {
	case namespace == "" || namespace == spec.GetNamespace():
	case spec.GetNamespace() != "":
		return fmt.Errorf("%s: namespace: is %s in the file and %s by --namespace or NUSA_NAMESPACE", file, spec.GetNamespace(), namespace)
	case !job.ValidName(namespace):
		return fmt.Errorf("--namespace: %q is not a name", namespace)
	default:
		spec.Namespace = namespace
	}
	return nil
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

func exportCommand(s *cli.Settings) *cobra.Command {
	return &cobra.Command{
		Use: "export JOB", Aliases: []string{"get", "inspect"}, Short: "Write a stored job as a job file", Args: cli.Positional("JOB"),
		Long: `Writes the stored job as a job file, YAML or (-o json) JSON, for job run and job
plan. Submitting the file changes nothing. Defaults are left out.`,
		Example: "  nusa job export hello > hello.yaml\n  nusa job export hello | nusa job plan -",
		RunE: s.Run(func(c *cli.Session, args []string) error {
			ref, err := c.Ref(args[0])
			if err != nil {
				return err
			}
			ctx, cancel := c.WithTimeout()
			defer cancel()
			j, err := c.Jobs().Get(ctx, &nusav1.GetJobRequest{Job: ref})
			if err != nil {
				return err
			}
			format := job.YAML
			if c.Output == "json" {
				format = job.JSON
			}
			text, err := job.Export(j.GetSpec(), format)
			if err != nil {
				return fmt.Errorf("%s cannot be written as a job file: %w", cli.RefName(ref), err)
			}
			_, err = c.Out.Write(text)
			return err
		}),
	}
}
