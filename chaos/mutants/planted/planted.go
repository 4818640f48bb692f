// Package planted names the mutant that has an effect in this process. Only programs that are built with overlays of
// chaos/mutants import it.
package planted

import "os"

// Variable is the environment variable that names the mutant.
const Variable = "NORTHSTAR_SIM_MUTANT"

// Name is the name of the mutant; "" means none.
var Name = os.Getenv(Variable)
