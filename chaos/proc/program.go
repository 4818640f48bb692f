package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// programsEnv names the directory in which test binaries share programs of these sources; make test sets it.
const programsEnv = "NORTHSTAR_PROGRAMS"

// Program returns the path of a program of cmd, northstar-node or northstarctl. It builds the program in dir. In the
// directory that programsEnv names, only the first process builds it, and others wait for that.
func Program(dir, name string) (string, error) {
	pkg, shared := "northstar/cmd/"+name, os.Getenv(programsEnv)
	if shared == "" {
		return Build(dir, pkg)
	}
	lock, err := os.Create(filepath.Join(shared, name+".lock"))
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	bin := filepath.Join(shared, name)
	if _, err := os.Stat(bin); !errors.Is(err, fs.ErrNotExist) {
		return bin, err
	}
	return Build(shared, pkg)
}

// Build builds a package with flags of go build, and returns the path of the program in dir.
func Build(dir, pkg string, flags ...string) (string, error) {
	bin := filepath.Join(dir, filepath.Base(pkg))
	args := append(append([]string{"build", "-o", bin}, flags...), pkg)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return bin, nil
}
