package deadletter

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func redriveCommand(s *cli.Settings) *cobra.Command {
	f := &filter{}
	var edit bool
	var file string
	c := &cobra.Command{
		Use: "redrive [ID...]", Aliases: []string{"retry"}, Short: "Run failed instances again", Args: cobra.ArbitraryArgs,
		Long: `Submits, for each dead letter, a job that runs the instance again with the same
$NUSA_INDEX. Its name is that of the job, a dot, r and the id. With --edit the editor
$VISUAL or $EDITOR opens the job first, and a job that was not changed is not submitted.
With --file the job is read from a file. Flags such as --job select open dead letters.`,
		Example: `  nusa deadletter redrive 3f9a01bc
  nusa deadletter redrive 3f9a01bc --edit
  nusa deadletter redrive --job frames --category node_lost`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			f.req.State = nusav1.DeadLetterState_DEAD_LETTER_STATE_OPEN
			ids, err := selected(c.Ctx, c, f, args)
			switch {
			case err != nil:
				return err
			case edit && file != "":
				return errors.New("give either --edit or --file")
			case (edit || file != "") && len(ids) != 1:
				return fmt.Errorf("--edit and --file need one dead letter, not %d", len(ids))
			}
			change := &edited{}
			switch {
			case edit:
				err = change.open(c, ids[0])
			case file != "":
				err = change.read(c, file)
			}
			if err != nil {
				return err
			}
			return redrive(c, ids, change)
		}),
	}
	f.bind(c)
	c.Flags().BoolVarP(&edit, "edit", "e", false, "edit the job before")
	c.Flags().StringVarP(&file, "file", "f", "", "submit the job of this file instead; - reads standard input")
	return c
}

// redrive redrives dead letters, and prints what became of them. It goes on after an error.
func redrive(c *cli.Session, ids []string, change *edited) error {
	out := &nusav1.ListDeadLettersResponse{}
	var failed error
	for _, id := range ids {
		ctx, cancel := c.WithTimeout()
		l, err := client(c).Redrive(ctx, &nusav1.RedriveRequest{Id: id, Spec: change.spec})
		cancel()
		if err != nil {
			failed = cmp.Or(failed, err)
			if len(ids) > 1 && c.Ctx.Err() == nil {
				continue
			}
			break
		}
		out.DeadLetters = append(out.DeadLetters, l)
	}
	if err := change.end(c, failed); err != nil {
		return err
	}
	err := c.Print(out, func(w *term.Screen) {
		for _, l := range out.GetDeadLetters() {
			fmt.Fprintf(w, "%s: runs again as %s\n", instance(l), cli.JobName(l.GetNamespace(), l.GetRedrivenAs(), ""))
		}
		if len(ids) == 0 {
			fmt.Fprintln(w, "no open dead letters")
		}
	})
	return cmp.Or(err, failed)
}

// edited is a job that replaces that of a dead letter.
type edited struct {
	spec *nusav1.JobSpec
	// path is the file that an editor has changed.
	path string
	id   string
}

func (e *edited) read(c *cli.Session, name string) error {
	data, err := c.ReadFile(name)
	if err != nil {
		return err
	}
	e.spec, err = job.Parse(data, name)
	return err
}

// open lets an editor change the job of a dead letter.
func (e *edited) open(c *cli.Session, id string) error {
	ctx, cancel := c.WithTimeout()
	defer cancel()
	l, err := client(c).Get(ctx, &nusav1.GetDeadLetterRequest{Id: id, Spec: true})
	if err != nil {
		return err
	}
	if l.GetSpec() == nil {
		return fmt.Errorf("the spec of dead letter %s is not stored any more: write the job to a file, and use --file", l.GetId())
	}
	text, err := job.Export(l.GetSpec(), job.YAML)
	if err != nil {
		return fmt.Errorf("the job cannot be written as a job file: %w", err)
	}
	dir, err := os.MkdirTemp("", "nusa-redrive-")
	if err != nil {
		return err
	}
	e.path, e.id = filepath.Join(dir, l.GetId()+".yaml"), l.GetId()
	head := fmt.Sprintf("# %s: %s. Change the job, save it and leave the editor to run it again; leave without a change to give up.\n", instance(l), failure(l.GetFailure()))
	text = append([]byte(head), text...)
	if err := os.WriteFile(e.path, text, 0o600); err != nil {
		return err
	}
	if err := runEditor(c.Ctx, c.Cmd, e.path); err != nil {
		return e.end(c, err)
	}
	data, err := os.ReadFile(e.path)
	switch {
	case err != nil:
		return e.end(c, err)
	case len(bytes.TrimSpace(data)) == 0:
		return e.end(c, errors.New("the file is empty: nothing is redriven"))
	}
	if e.spec, err = job.Parse(data, e.path); err != nil {
		return e.end(c, err)
	}
	if was, err := job.Parse(text, e.path); err == nil && proto.Equal(was, e.spec) {
		return cmp.Or(os.RemoveAll(dir), fmt.Errorf("the job was not changed, so nothing is redriven: run it again as it is with %s deadletter redrive %s", c.Program, l.GetId()))
	}
	return nil
}

// end removes the edited file once it is not needed. After an error it stays.
func (e *edited) end(c *cli.Session, err error) error {
	switch {
	case e.path == "":
		return nil
	case err != nil:
		fmt.Fprintf(c.Cmd.ErrOrStderr(), "the edited job is kept; submit it with: %s deadletter redrive %s --file %s\n", c.Program, e.id, e.path)
		return err
	}
	return os.RemoveAll(filepath.Dir(e.path))
}

// runEditor opens a file in the editor of the user.
func runEditor(ctx context.Context, cmd *cobra.Command, path string) error {
	editor := cmp.Or(os.Getenv("VISUAL"), os.Getenv("EDITOR"), "vi")
	run := exec.CommandContext(ctx, "/bin/sh", "-c", editor+` "$1"`, "sh", path) // EDITOR may have arguments
	run.Stdin, run.Stdout, run.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if err := run.Run(); err != nil {
		return fmt.Errorf("editor %s: %w", editor, err)
	}
	return nil
}
