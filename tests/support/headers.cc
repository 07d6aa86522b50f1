// Owns the precompiled headers of the tests (tests/CMakeLists.txt).
int main() { return 0; }
