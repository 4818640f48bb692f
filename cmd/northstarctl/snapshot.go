package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"northstar/api/apiv1"
	"northstar/client"
	"northstar/state"
)

type snapshotCmd struct {
	Save    snapshotSaveCmd    `cmd:"" help:"Save a backup of the cluster's state to a file."`
	Inspect snapshotInspectCmd `cmd:"" help:"Check a backup and show its contents; needs no cluster."`
	Restore snapshotRestoreCmd `cmd:"" help:"Restore a backup: replaces all keys and settings."`
}

type snapshotSaveCmd struct {
	File  string `arg:"" type:"path" help:"The file to write."`
	Force bool   `help:"Replace the file if it exists."`
}

// Run writes a temporary file and renames it at the end: the file is always a complete, checked backup.
func (s *snapshotSaveCmd) Run(a *app) error {
	if _, err := os.Lstat(s.File); err == nil && !s.Force {
		return fmt.Errorf("%s exists: --force replaces it", s.File)
	}
	save := func(c *client.Client, ctx context.Context) (info state.Info, err error) {
		err = writeFile(s.File, 0o600, func(f *os.File) error {
			if _, err := c.SnapshotSave(ctx, f); err != nil {
				return err
			}
			if _, err := f.Seek(0, io.SeekStart); err != nil {
				return err
			}
			info, err = state.Inspect(f)
			return err
		})
		return info, err
	}
	return show(a, "saving "+filepath.Base(s.File), save, a.printBackup)
}

type snapshotInspectCmd struct {
	File string `arg:"" type:"existingfile" help:"The backup."`
}

func (s *snapshotInspectCmd) Run(a *app) error {
	info, err := inspect(s.File)
	if err != nil {
		return err
	}
	return a.printResult(info, func() error { return a.printBackup(info) })
}

func inspect(name string) (state.Info, error) {
	f, err := os.Open(name)
	if err != nil {
		return state.Info{}, err
	}
	defer f.Close()
	return state.Inspect(f)
}

func (a *app) printBackup(info state.Info) error {
	var members []string
	for _, m := range info.Members {
		members = append(members, string(m.ID))
	}
	return a.table([]string{"field", "value"}, [][]any{
		{"cluster", fmt.Sprintf("%s, generation %d", orDash(info.ClusterID), info.Generation.Number)},
		{"revision", info.Revision},
		{"log", fmt.Sprintf("applied %d, term %d", info.AppliedIndex, info.AppliedTerm)},
		{"keys", fmt.Sprintf("%d, %d bytes", info.Keys, info.Bytes)},
		{"members", orDash(strings.Join(members, ", "))},
		{"size", fmt.Sprintf("%d bytes", info.Size)},
		{"sha256", info.SHA256},
	})
}

type snapshotRestoreCmd struct {
	File string `arg:"" type:"existingfile" help:"The backup."`
}

func (s *snapshotRestoreCmd) Run(a *app) error {
	info, err := inspect(s.File)
	if err != nil {
		return err
	}
	if err := a.applyContext(); err != nil { // the question names the cluster of the context
		return err
	}
	err = a.confirm("All keys and settings of the cluster at %s will be replaced by those of %s (%d keys at "+
		"revision %d of cluster %s).",
		a.Endpoints[0], s.File, info.Keys, info.Revision, orDash(info.ClusterID))
	if err != nil {
		return err
	}
	f, err := os.Open(s.File)
	if err != nil {
		return err
	}
	defer f.Close()
	return show(a, "restoring", with((*client.Client).SnapshotRestore, io.Reader(f)),
		func(res apiv1.RestoreResult) error {
			return a.printf("restored, the cluster is at revision %d\n", res.Revision)
		})
}

// writeFile creates a complete file or none: fill writes a temporary file, which is then synced and renamed.
func writeFile(name string, mode fs.FileMode, fill func(*os.File) error) error {
	return writeFiles(newFile{name, mode, fill})
}

// newFile is a file to be written.
type newFile struct {
	name string
	mode fs.FileMode
	fill func(*os.File) error
}

// writeFiles replaces files of one directory, all of them or none. Each is complete in a temporary file before the
// first is renamed. So only a crash between two renames, or an error there, leaves old files beside new ones.
func writeFiles(files ...newFile) error {
	temps := make([]string, 0, len(files))
	defer func() {
		for _, temp := range temps {
			_ = os.Remove(temp) // without effect after the rename
		}
	}()
	for _, f := range files {
		if st, err := os.Lstat(f.name); err == nil && st.IsDir() {
			return fmt.Errorf("%s is a directory", f.name)
		}
		temp, err := os.CreateTemp(filepath.Dir(f.name), "."+filepath.Base(f.name)+".*")
		if err != nil {
			return err
		}
		temps = append(temps, temp.Name())
		if err := errors.Join(temp.Chmod(f.mode), f.fill(temp), temp.Sync(), temp.Close()); err != nil {
			return err
		}
	}
	for i, f := range files {
		if err := os.Rename(temps[i], f.name); err != nil {
			return err
		}
	}
	if d, err := os.Open(filepath.Dir(files[0].name)); err == nil {
		_ = d.Sync() // makes the renames durable; some file systems do not support it
		_ = d.Close()
	}
	return nil
}
